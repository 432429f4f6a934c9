"""Dead letters outlive the segments that they were written to, within a time and a size of their own."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from minimq_broker.core.disk import Watermarks
from minimq_broker.core.retention import RetentionRules
from minimq_broker.store.check import check_directory
from minimq_broker.store.copy import StoreCopy
from minimq_broker.store.inspect import inspect_as_json, inspect_directory
from minimq_common.errors import StoreError, StoreFull
from support.dead_letters import BODY, DEAD, ROUNDS, SEGMENT, fill, made, ready, remove_all
from support.disks import disk_of, fill_up
from support.stores import Stores


def test_dead_letters_are_read_on_as_they_were_when_all_segments_are_gone(stores: Stores) -> None:
    store, dead = ready(stores)
    key = store.key(DEAD, 0)
    bounds, batches = store.store.bounds(key), store.read(DEAD, 0, 0)
    at_time = store.store.offset_at(key, batches[4].stored_ms)
    for _ in range(ROUNDS):  # one segment after the other: at each moment nothing is missing or there twice
        assert store.store.remove_first(1 << 60)
        assert store.read(DEAD, 0, 0) == batches
        assert store.bodies(DEAD, 0) == dead
        assert store.bodies(DEAD, 0, 3) == dead[3:]
        assert store.store.bounds(key) == bounds == (0, len(dead))
        assert store.store.offset_at(key, batches[4].stored_ms) == at_time == 4
        assert store.store.stored_ms(key, 5) == batches[5].stored_ms
        assert store.store.log.offset_from(key, batches[3].position) == 3
    assert len(store.store.log.segments) == 1
    assert store.store.bounds(store.key("t", 0)) == (32, 32)
    assert store.bodies("t", 0) == []
    assert len(store.bodies("%DLQ%h", 1)) == 4
    store.append(DEAD, 0, b"late")
    assert store.bodies(DEAD, 0, 7) == [dead[7], b"late"]
    store.close()
    store = stores.open(segment_bytes=SEGMENT)
    assert store.bodies(DEAD, 0) == [*dead, b"late"]


def test_a_segment_without_dead_letters_makes_no_archive(stores: Stores) -> None:
    store = stores.open(segment_bytes=SEGMENT)
    store.create_topic("t")
    store.create_topic(DEAD)
    for _ in range(8):
        store.append("t", 0, BODY)
    store.close()
    store = stores.open(segment_bytes=SEGMENT)
    assert store.store.remove_first(1 << 60) or len(store.store.log.segments) == 1
    assert not (store.path / "dead-letters.mdb").exists()


def test_a_copy_that_is_interrupted_before_the_removal_is_harmless(stores: Stores) -> None:
    """The files are those of a broker that was killed between the two."""
    store, dead = ready(stores)
    store.store.dead_letters.keep(store.store.log.segments[0], 0)
    assert store.bodies(DEAD, 0) == dead
    killed = stores.folder / "killed"
    shutil.copytree(store.path, killed)
    assert check_directory(killed).findings == []
    again = stores.open("killed", segment_bytes=SEGMENT)
    assert again.bodies(DEAD, 0) == dead
    remove_all(again)
    assert again.bodies(DEAD, 0) == dead


def test_the_oldest_go_when_they_are_too_many_and_the_log_says_whose(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    store = made(stores, dead_letters=RetentionRules(max_bytes=120_000))
    for number in range(40):
        store.append(DEAD, number % 2, b"%d" % number + bytes(6000))
    store.store.call(lambda: store.store.log.roll(store.store.end))
    store.close()
    store = stores.open(segment_bytes=SEGMENT, dead_letters=RetentionRules(max_bytes=120_000))
    with caplog.at_level(logging.WARNING):
        remove_all(store)
    archive = store.store.log.archive
    assert archive is not None
    assert 60_000 < archive.live_bytes <= 120_000
    lost = store.store.dead_letters.deleted
    assert 0 < lost < 40
    firsts = [store.store.bounds(store.key(DEAD, number))[0] for number in range(2)]
    assert sum(firsts) == lost
    assert [len(store.bodies(DEAD, number)) for number in range(2)] == [20 - first for first in firsts]
    told = [line for line in caplog.messages if "dead letters deleted" in line]
    counts = [int(line.partition("count=")[2].partition(" ")[0]) for line in told]
    assert sum(counts) == lost
    assert all(line.startswith("retention: dead letters deleted group=g queue=") for line in told)
    assert all(line.endswith("reason=size") for line in told)
    before = (store.path / "dead-letters.mdb").stat().st_size
    assert before < 400_000  # pages are used again


def test_those_that_are_too_old_go_by_their_own_time(stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    rules = RetentionRules(max_age_ms=100_000)
    store, dead = ready(stores, dead_letters=rules)
    remove_all(store)
    store.store.look_at_dead_letters()
    assert store.bodies(DEAD, 0) == dead
    store.clock.now_ms = store.read(DEAD, 0, 0)[3].stored_ms + rules.max_age_ms
    with caplog.at_level(logging.WARNING):
        store.store.look_at_dead_letters()
    assert store.bodies(DEAD, 0, 4) == dead[4:]
    assert store.store.bounds(store.key(DEAD, 0)) == (4, 8)
    assert "retention: dead letters deleted group=g queue=0 count=4 reason=age" in caplog.messages
    store.clock.now_ms += 1 << 40
    store.store.look_at_dead_letters()
    assert store.store.bounds(store.key(DEAD, 0)) == (8, 8)


def test_those_of_a_deleted_topic_go_once_that_cannot_be_taken_back(stores: Stores) -> None:
    store, _ = ready(stores)
    remove_all(store)
    archive = store.store.log.archive
    assert archive is not None
    gone, kept = store.key(DEAD, 0).topic_id, store.key("%DLQ%h", 0).topic_id
    store.delete_topic(DEAD)
    store.store.look_at_dead_letters()
    assert archive.topic_ids == {gone, kept}  # the state is not saved yet
    store.store.dead_letters.look(0, store.store.end)
    assert archive.topic_ids == {kept}
    store.create_topic(DEAD)
    assert store.bodies(DEAD, 0) == []
    assert len(store.bodies("%DLQ%h", 0)) == 4


def test_a_replica_gets_the_archive_with_a_copy(stores: Stores) -> None:
    store, dead = ready(stores)
    for _ in range(2):
        store.store.remove_first(1 << 60)
    master = store.store
    path = stores.folder / "copied"
    with StoreCopy(path, master.snapshot(), master.log.start, SEGMENT) as copy:
        for at in (-1, master.log.start):
            with pytest.raises(StoreError, match="copy again"):
                copy.put_archived([(at, master.archived(0, master.log.start, 1)[0][1])])
        position = 0
        while found := master.archived(position, master.log.start, 1):
            copy.put_archived(found)
            position = found[-1][0] + 1
        copy.put(master.entries(master.log.start, 1 << 30))
        copy.finish()
    copied = stores.open("copied", segment_bytes=SEGMENT, alone=False)
    assert [copied.store.log.row_at(copied.key(DEAD, 0), offset) for offset in range(8)] == [
        store.store.log.row_at(store.key(DEAD, 0), offset) for offset in range(8)
    ]
    copied.store.confirm(copied.store.end)
    assert copied.bodies(DEAD, 0) == dead
    copied.close()
    with StoreCopy(path, master.snapshot(), master.log.start, SEGMENT, replace=True) as copy:  # without an archive
        copy.put(master.entries(master.log.start, 1 << 30))
        copy.finish()
    assert not (path / "dead-letters.mdb").exists()


def test_what_is_cut_off_is_cut_off_the_archive_as_well(stores: Stores) -> None:
    """Its segment is still there: what was archived ahead of the removal must not come back by it."""
    store = stores.open("slave", segment_bytes=SEGMENT, alone=False)
    store.store.lead(1)
    for name in ("t", DEAD, "%DLQ%h"):
        store.create_topic(name, queues=2)
    dead = fill(store, 1)
    store.store.follow()
    store.store.dead_letters.keep(store.store.log.segments[0], 0)
    second = store.read(DEAD, 0, 1)[0].position
    store.store.truncate(second)
    assert store.store.log.archive is not None
    assert [position for position, _ in store.store.log.archive.entries()] == [
        position for position, _ in store.store.archived(0, second, 1 << 30)
    ]
    store.store.confirm(store.store.end)
    assert store.bodies(DEAD, 0) == dead[:1]


def test_check_and_inspect_know_the_archive(stores: Stores) -> None:
    store, dead = ready(stores)
    remove_all(store)
    store.close()
    report = check_directory(store.path)
    assert report.findings == []
    assert report.messages == 16
    about = inspect_as_json(store.path, entries=True)
    assert about["dead_letters"]["messages"] == 16
    [topic] = [item for item in about["topics"] if item["topic"] == DEAD]
    assert topic["queues"][0] == {"queue": 0, "min_offset": 0, "max_offset": len(dead)}
    assert sum(item.get("kind") == "batch" for item in about["entries"]) == 16
    assert any(
        line.startswith("dead letters of removed segments: 16 messages")
        for line in inspect_directory(store.path, entries=False)
    )

    file = store.path / "dead-letters.mdb"
    file.write_bytes(file.read_bytes().replace(b"second 2", b"wecond 2"))
    stores.damaged.add(store.path)
    findings = check_directory(store.path).findings
    assert len(findings) == 2  # one of each group
    assert all(finding.startswith("dead-letters.mdb: position ") for finding in findings)


@pytest.mark.parametrize("needs_space", [False, True])
def test_on_a_full_disk_they_are_kept_unless_it_needs_the_space(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, needs_space: bool
) -> None:
    marks = Watermarks(1.0, 0.5 if needs_space else 1.0, 1.0)
    with disk_of(tmp_path / "disk", "8m") as disk:
        stores = Stores(disk)
        store, dead = ready(stores, watermarks=marks)
        assert store.store.remove_first(1 << 60)
        reserve = fill_up(disk)
        left = dead[:2] + dead[4:] if needs_space else dead
        if needs_space:
            with caplog.at_level(logging.WARNING):
                assert store.store.remove_first(1 << 60)
            assert "retention: dead letters deleted group=g queue=0 count=2 reason=disk" in caplog.messages
            assert store.store.dead_letters.deleted == 4
        else:
            with pytest.raises(StoreFull, match="too full to copy its dead letters"):
                store.store.remove_first(1 << 60)
        assert store.bodies(DEAD, 0) == left
        reserve.unlink()
        remove_all(store)
        assert store.bodies(DEAD, 0) == left
        stores.close()  # which checks them


def test_those_that_find_no_room_in_the_archive_are_counted(
    stores: Stores, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free pages of the archive can be too scattered for what comes: here its address space is made that small."""
    monkeypatch.setattr("minimq_broker.store.segment_tables._MAP_SLACK", 0)
    store = made(stores)
    for number in range(40):
        store.append(DEAD, 0, b"%d" % number + bytes(6000))
    store.store.call(lambda: store.store.log.roll(store.store.end))
    store.close()
    store = stores.open(segment_bytes=SEGMENT, dead_letters=RetentionRules(max_bytes=60_000))
    with caplog.at_level(logging.WARNING):
        remove_all(store)
    assert len(store.store.log.segments) == 1
    assert caplog.messages == ["retention: dead letters deleted group=g queue=0 count=40 reason=size"]
    assert store.store.dead_letters.deleted == 40
