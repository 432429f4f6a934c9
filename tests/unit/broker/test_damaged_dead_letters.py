"""Damage of dead letters stops neither the broker nor its retention: it is named, counted and set aside."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from minimq_broker.core.retention import RetentionRules
from minimq_broker.core.state import QueueKey
from minimq_broker.store.check import check_directory
from minimq_broker.store.inspect import inspect_as_json, inspect_directory
from minimq_broker.store.segment import Segment
from support.dead_letters import DEAD, ROUNDS, SEGMENT, fill, made, ready, remove_all
from support.stores import OpenStore, Stores

ARCHIVE = "dead-letters.mdb"
OTHER = "%DLQ%h"
#: Of an LMDB page: its size, that of its header, and the flag of one that refers to others.
_PAGE, _HEADER, _BRANCH = 4096, 16, 1


def change(file: Path, table: bytes, key: bytes, value: bytes | None) -> bytes:
    """Put or delete one value of a table, as a fault of a disk might, and return what was there."""
    with lmdb.open(str(file), subdir=False, max_dbs=2, map_size=1 << 30) as env:
        found = env.open_db(table, create=False)
        with env.begin(write=True) as txn:
            former = txn.get(key, db=found)
            assert former is not None
            if value is None:
                assert txn.delete(key, db=found)
            else:
                assert txn.put(key, value, db=found)
            return bytes(former)


def row_key(queue: QueueKey, last_offset: int) -> bytes:
    return struct.pack(">QIQ", *queue, last_offset)


def lose_entry(file: Path, queue: QueueKey, offset: int) -> None:
    """Delete the entry of a message; its row stays."""
    segment = Segment(file, int(file.stem) if file.stem.isdigit() else 0, SEGMENT, readonly=True)
    row = segment.row_at(queue, offset)
    segment.close()
    assert row is not None
    change(file, b"log", struct.pack(">Q", row.position), None)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return sorted(line for line in caplog.messages if line.startswith("retention: dead letters deleted"))


def reopened(stores: Stores, store: OpenStore) -> OpenStore:
    stores.damaged.add(store.path)
    return stores.open(segment_bytes=SEGMENT)


def lose_pages(file: Path, prefix: bytes = b"", most: int = 1000) -> None:
    """Let tables refer to so many pages that are not there, instead of those from their second on."""
    data = bytearray(file.read_bytes())
    done = 0
    for page in range(2 * _PAGE, len(data), _PAGE):
        flags, lower = struct.unpack_from("<HH", data, page + 10)
        for at in range(_HEADER + 2, min(lower, _HEADER + 2 + 2 * most) if flags & _BRANCH else 0, 2):
            node = page + int(struct.unpack_from("<H", data, page + at)[0])
            if data[node + 8 :].startswith(prefix):
                struct.pack_into("<H", data, node + 4, 0x7FFF)  # the upper bits of the page number
                done += 1
    assert done
    with file.open("r+b") as opened:  # in place: a broker may have it open
        opened.write(data)


@pytest.mark.parametrize("offset", [0, 1])
def test_a_damaged_index_row_costs_its_message_and_stops_nothing(
    stores: Stores, caplog: pytest.LogCaptureFixture, offset: int
) -> None:
    store, dead = ready(stores)
    file, queue = store.store.log.segments[0].path, store.key(DEAD, 0)
    store.close()
    change(file, b"consumequeue", row_key(queue, offset), b"short")
    store = reopened(stores, store)
    with caplog.at_level(logging.WARNING):
        remove_all(store)
    assert len(store.store.log.segments) == 1
    assert store.bodies(DEAD, 0) == dead[:offset] + dead[offset + 1 :]
    assert len(store.bodies(OTHER, 0)) == len(store.bodies(OTHER, 1)) == ROUNDS
    assert told(caplog) == ["retention: dead letters deleted group=g queue=0 count=1 reason=damage"]
    assert store.store.dead_letters.deleted == 1


def test_an_unreadable_dead_letter_costs_no_other_group_anything(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    store, dead = ready(stores)
    file, queue = store.store.log.segments[0].path, store.key(DEAD, 0)
    others = [store.bodies(OTHER, number) for number in range(2)]
    store.close()
    lose_entry(file, queue, 0)
    store = reopened(stores, store)
    with caplog.at_level(logging.WARNING):
        remove_all(store)
    assert [store.bodies(OTHER, number) for number in range(2)] == others
    assert store.bodies(DEAD, 0) == dead[1:]
    assert told(caplog) == ["retention: dead letters deleted group=g queue=0 count=1 reason=damage"]
    [line] = [line for line in caplog.messages if line.startswith("retention: dead letters of a damaged segment")]
    assert "are lost segment=0 error=" in line
    assert "where no entry begins" in line
    assert store.store.dead_letters.deleted == 1


def test_a_damaged_page_of_the_index_costs_what_it_held_and_the_count_is_told(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    store = made(stores)
    for number in range(400):
        store.append(DEAD, 0, b"%d" % number)
    store.append(OTHER, 0, b"other")
    store.store.call(lambda: store.store.log.roll(store.store.end))
    store.append("t", 0, b"x")
    file, queue = store.store.log.segments[0].path, store.key(DEAD, 0)
    store.close()
    store = reopened(stores, store)
    lose_pages(file, row_key(queue, 0)[:12], 1)
    with caplog.at_level(logging.WARNING):
        remove_all(store)
    kept = store.bodies(DEAD, 0)
    assert 0 < len(kept) < 400
    assert store.bodies(OTHER, 0) == [b"other"]
    assert told(caplog) == [f"retention: dead letters deleted group=g queue=0 count={400 - len(kept)} reason=damage"]


def harm_head(file: Path) -> None:
    """Overwrite what LMDB begins to read with."""
    data = file.read_bytes()
    file.write_bytes(bytes(2 * _PAGE) + data[2 * _PAGE :])


def harm_length(file: Path) -> None:
    """Leave nothing but what LMDB begins to read with."""
    file.write_bytes(file.read_bytes()[: 2 * _PAGE])


def archived(stores: Stores) -> tuple[OpenStore, list[bytes]]:
    """Return a closed store with two segments removed, and the dead letters of group g."""
    store, dead = ready(stores)
    assert store.store.remove_first(1 << 60)
    assert store.store.remove_first(1 << 60)
    store.close()
    return store, dead


@pytest.mark.parametrize("harm", [harm_head, harm_length])
def test_an_archive_that_cannot_be_opened_is_set_aside_at_the_start(
    stores: Stores, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None]
) -> None:
    store, dead = archived(stores)
    file = store.path / ARCHIVE
    harm(file)
    [finding] = check_directory(store.path).findings
    assert finding.startswith(f"{ARCHIVE}: it cannot be read: ")
    assert check_directory(store.path).messages > 0  # those of the segments
    assert any("damaged, a broker sets them aside" in line for line in inspect_directory(store.path, entries=True))
    assert file.exists()
    with caplog.at_level(logging.ERROR):
        store = stores.open(segment_bytes=SEGMENT)
    [line] = caplog.messages
    assert f"are set aside, and no longer read file={file}.damaged-1 bytes=" in line
    assert "take them from another replica or a backup, or delete the file" in line
    remove_all(store)
    store.store.look_at_dead_letters()
    assert store.bodies(DEAD, 0) == dead[4:]
    store.close()
    assert check_directory(store.path).findings == []
    assert inspect_as_json(store.path, entries=False)["dead_letters"]["set_aside"] == [f"{ARCHIVE}.damaged-1"]
    assert any(f"set aside in {ARCHIVE}.damaged-1" in line for line in inspect_directory(store.path, entries=False))


def harmed(stores: Stores, most: int = 1000) -> tuple[OpenStore, QueueKey]:
    """Return an open store whose archive was damaged after it was opened."""
    store = made(stores)
    for number in range(400):
        store.append(DEAD, 0, b"%d" % number)
    store.store.call(lambda: store.store.log.roll(store.store.end))
    fill(store, 1)
    store.close()
    store = stores.open(segment_bytes=SEGMENT)
    stores.damaged.add(store.path)
    assert store.store.remove_first(1 << 60)
    lose_pages(store.path / ARCHIVE, most=most)
    return store, store.key(DEAD, 0)


@pytest.mark.parametrize(
    "use",
    [
        lambda store, queue: store.store.read(queue, 0, 1000, 1 << 30),
        lambda store, queue: [store.store.stored_ms(queue, offset) for offset in range(400)],
        lambda store, queue: store.store.log.offset_from(queue, store.store.log.start // 2),
        lambda store, queue: store.store.archived(0, 1 << 60, 1 << 30),
    ],
)
def test_an_archive_that_is_found_damaged_is_set_aside_and_the_segments_are_used(
    stores: Stores, use: Callable[[OpenStore, QueueKey], object]
) -> None:
    store, queue = harmed(stores)
    use(store, queue)
    assert store.store.log.archive is None
    assert (store.path / f"{ARCHIVE}.damaged-1").exists()
    assert store.store.bounds(queue) == (400, 402)
    remove_all(store)
    assert store.bodies(DEAD, 0) == [b"first 0", b"second 0"]
    assert (store.path / ARCHIVE).exists()


def test_what_cannot_be_added_to_a_damaged_archive_goes_to_an_empty_one(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    store, queue = harmed(stores)
    with caplog.at_level(logging.WARNING):
        remove_all(store)
    assert len(store.store.log.segments) == 1
    assert store.store.bounds(queue) == (400, 402)
    assert store.bodies(DEAD, 0) == [b"first 0", b"second 0"]
    assert [store.bodies(OTHER, number) for number in range(2)] == [[b"first 0", b"second 0"], []]
    assert told(caplog) == []
    store.close()
    assert check_directory(store.path).findings == []


def test_check_and_inspect_go_on_behind_a_damaged_page_of_the_archive(stores: Stores) -> None:
    store, _ = harmed(stores, 1)
    store.close()
    report = check_directory(store.path)
    assert [line for line in report.findings if not line.startswith(f"{ARCHIVE}: ")] == []
    assert any("it cannot be read: " in line and "leads to page" in line for line in report.findings)
    assert report.segments == 2
    about = inspect_as_json(store.path, entries=True)
    assert about["dead_letters"]["damage"]
    assert [topic["queues"][0]["min_offset"] for topic in about["topics"] if topic["topic"] == DEAD] == [400]
    assert (store.path / ARCHIVE).exists()


def test_a_damaged_entry_of_the_archive_is_deleted_with_its_row_and_counted(stores: Stores) -> None:
    rules = RetentionRules(max_age_ms=100_000)
    store, _ = ready(stores, dead_letters=rules)
    remove_all(store)
    archive = store.store.log.archive
    assert archive is not None
    row = archive.row_at(store.key(DEAD, 0), 3)
    assert row is not None
    store.close()
    change(store.path / ARCHIVE, b"log", struct.pack(">Q", row.position), b"short")
    store = stores.open(segment_bytes=SEGMENT, dead_letters=rules)
    archive = store.store.log.archive
    assert archive is not None
    store.clock.now_ms += 1 << 40
    store.store.look_at_dead_letters()
    assert list(archive.rows()) == []
    assert list(archive.entries()) == []
    assert store.store.dead_letters.deleted == 16
