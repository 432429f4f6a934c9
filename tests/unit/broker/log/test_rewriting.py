"""Rewritten segments: what is kept stays where it was, whatever interrupts it, and all that walks the log knows it."""

from __future__ import annotations

import shutil
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from minimq_broker.backup.check import compare_directories
from minimq_broker.backup.copy import StoreCopy
from minimq_broker.commit.store import Store
from minimq_broker.log.rows import ReadLimits, unpack_row
from minimq_common.errors import StoreError
from support.checking import findings_of
from support.kernel_stores import OpenStore, Stores
from support.rewritings import Keeps, begin_rewriting, rewrite
from support.states import rows

SEGMENT_BYTES = 64 << 10
#: Two messages each, in three topics one after the other.
BATCHES = 36
TOPICS = ("a", "b", "c")


@pytest.fixture
def store(stores: Stores) -> OpenStore:
    """A store of many segments, whose state is saved, and which is written to still."""
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    for topic in TOPICS:
        store.create_topic(topic)
    fill(store, range(BATCHES))
    store.close()
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    fill(store, range(BATCHES, BATCHES + 3))
    assert len(store.store.log.segments) >= 6
    return store


def fill(store: OpenStore, numbers: range) -> None:
    for number in numbers:
        store.append(TOPICS[number % 3], 0, b"%d" % number, bytes(8_000))


def only(store: OpenStore, *topics: str) -> Keeps:
    ids = {store.key(topic, 0).topic_id for topic in topics}
    return lambda queue, offset: queue.topic_id in ids


def offsets(store: OpenStore, topic: str, offset: int = 0) -> list[int]:
    """Return the first offsets of all batches from one on, read as a consumer does that goes over gaps."""
    queue, found = store.key(topic, 0), list[int]()
    end = store.store.queue_end(queue).offset
    while offset < end:
        batches, offset = store.store.search(queue, offset, ReadLimits(1, 1))
        found += [batch.base_offset for batch in batches]
    return found


def log_rows(store: OpenStore, topic: str) -> list[Any]:
    return [
        unpack_row(last, value)
        for segment in store.store.log.segments
        for queue in segment.queues_of(store.key(topic, 0).topic_id)
        for last, _, value in segment.values_of(queue)
    ]


def test_it_does_not_replace_a_damaged_segment(store: OpenStore) -> None:
    log = store.store.log
    rewriting = begin_rewriting(store.store, 1, 2, lambda queue, offset: True)
    while rewriting.step(1 << 30, 5):
        pass
    log.mark_damaged(log.segments[2].start, "for this test")
    assert not rewriting.put_in_place()
    rewriting.close()


def test_all_that_walks_the_log_understands_it(store: OpenStore, stores: Stores) -> None:
    rewrite(store.store, 1, 3, only(store, "a"))
    store.close()
    assert findings_of(store.path) == []
    assert compare_directories(store.path, shutil.copytree(store.path, stores.folder / "other")).difference is None
    assert rows(stores.open(segment_bytes=SEGMENT_BYTES).state)


def test_a_state_that_was_lost_cannot_be_made_of_a_part_of_the_log(store: OpenStore, stores: Stores) -> None:
    rewrite(store.store, 0, 1, only(store, "a"))
    store.close()
    stores.damaged.add(store.path)
    path = store.path / "state.mdb"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(StoreError, match=r"state\.mdb"):
        stores.open(segment_bytes=SEGMENT_BYTES)


def test_a_lost_batch_behind_it_is_missed(store: OpenStore, stores: Stores) -> None:
    """Gaps are expected only in rewritten segments."""
    rewrite(store.store, 0, 1, only(store, "a"))
    log = store.store.log
    queue = store.key("b", 0)
    row = next(row for row in log_rows(store, "b") if row.position > log.segments[2].start)
    segment = next(segment for segment in reversed(log.segments) if segment.start <= row.position)
    with segment._env.begin(write=True) as txn:
        assert txn.delete(struct.pack(">QIQ", *queue, row.last_offset), db=segment._rows)
        assert txn.delete(struct.pack(">Q", row.position), db=segment._log)
    stores.damaged.add(store.path)
    assert not log.may_lack(queue, row.base_offset)
    store.close()
    assert any("goes on at offset" in finding for finding in findings_of(store.path))


def copied(master: Store, path: Path, frame_bytes: int = 20_000) -> None:
    snapshot, log = master.snapshot(), master.log
    with closing(StoreCopy(path, snapshot, log.start, SEGMENT_BYTES, complete_from=log.complete_from)) as copy:
        while copy.position < master.end:
            position, entries = master.part(copy.position, frame_bytes)
            if position > copy.position:
                copy.skip_to(position)
            copy.put(entries)
        copy.finish()


@pytest.mark.replaced_by("machine")
@pytest.mark.parametrize("stretch", [(0, 1), (0, 3), (2, 2), (1, 4)])
@pytest.mark.parametrize("frame_bytes", [1, 20_000, 1 << 30])
def test_a_copy(store: OpenStore, stores: Stores, stretch: tuple[int, int], frame_bytes: int) -> None:
    rewrite(store.store, *stretch, only(store, "b"))
    copied(store.store, stores.folder / "copy", frame_bytes)
    copy = stores.open("copy", alone=False, segment_bytes=SEGMENT_BYTES)
    assert 0 < copy.store.log.complete_from <= store.store.log.complete_from
    assert rows(copy.state) == rows(store.state)
    copy.store.confirmation.confirm(copy.store.end)
    for topic in TOPICS:
        assert offsets(copy, topic) == offsets(store, topic)
    assert list(copy.store.log.entries()) == list(store.store.log.entries())
    copy.close()
    stores.open("copy", segment_bytes=SEGMENT_BYTES).append("b", 0, b"more")


def test_a_copy_with_a_gap_where_none_is_said_to_be(store: OpenStore, stores: Stores) -> None:
    snapshot = store.store.snapshot()
    with closing(StoreCopy(stores.folder / "copy", snapshot, 0, SEGMENT_BYTES, complete_from=100)) as copy:
        with pytest.raises(StoreError, match="the log has a gap: entry at 101 where 0 was expected"):
            copy.skip_to(101)
        copy.skip_to(50)
        with pytest.raises(StoreError, match="the log has a gap"):
            copy.skip_to(49)
    with pytest.raises(StoreError, match="behind the state"):
        StoreCopy(stores.folder / "copy", snapshot, 0, complete_from=snapshot.position + 1)
