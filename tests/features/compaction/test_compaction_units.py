"""Compaction leaves the latest message of each key, and all else as it was, compared with a dictionary."""

from __future__ import annotations

from typing import cast

import pytest
from msgspec.structs import replace

from minimq_broker.calls.store_handle import StoreHandle
from minimq_broker.features.compaction.compaction_file import COMPACTED, load_record, save_record
from minimq_broker.features.compaction.compactor import Compactor
from minimq_broker.metrics.counters import Counters
from support.chance import SEED
from support.compactions import TOMBSTONE_MS, Workload, compact, make_compacted
from support.one_store import OneStore
from support.stores import OpenStore, Stores

SEGMENT_BYTES = 128 << 10


@pytest.fixture
def store(stores: Stores) -> OpenStore:
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    store.create_topic("other")
    make_compacted(store, "state", 2)
    return store


def opened_again(stores: Stores, store: OpenStore) -> OpenStore:
    """Save the state of a store, so that all sealed segments may be rewritten."""
    store.close()
    return stores.open(segment_bytes=SEGMENT_BYTES)


def test_a_tombstone_vanishes_once_its_time_is_over(stores: Stores, store: OpenStore) -> None:
    work = Workload(store, "state", 2, SEED)
    work.send(200)
    work.store = store = opened_again(stores, store)
    compact(store)
    end = load_record(store.store.log.path).position
    tombstones = [each for queue in range(2) for each in work.found(queue) if not each.body]
    store.clock.now_ms += TOMBSTONE_MS - 1
    compact(store)
    assert [each for queue in range(2) for each in work.found(queue) if not each.body] == tombstones
    store.clock.now_ms += 1
    compact(store)
    left = [each for queue in range(2) for each in work.found(queue) if not each.body]
    assert load_record(store.store.log.path).position == end
    sealed_to = [
        store.store.log.first_offset_of(store.key("state", queue), lambda row: row.position >= end) or 1 << 40
        for queue in range(2)
    ]
    stay = [
        each for queue in range(2) for each in work.found(queue) if not each.body and each.offset >= sealed_to[queue]
    ]
    assert left == stay != tombstones
    work.check()


def test_a_tombstone_stays_while_an_older_message_of_its_queue_could_not_be_removed(
    stores: Stores, store: OpenStore
) -> None:
    work = Workload(store, "state", 2, SEED)
    work.send(60)
    work.store = store = opened_again(stores, store)
    compact(store)
    held, other = (sum(not each.body for each in work.found(queue)) for queue in range(2))
    record = load_record(store.store.log.path)
    save_record(store.store.log.path, replace(record, held=(tuple(store.key("state", 0)),)))
    store.clock.now_ms += TOMBSTONE_MS
    compact(store)
    assert sum(not each.body for each in work.found(0)) == held > 0
    assert sum(not each.body for each in work.found(1)) < other
    work.check()


def test_a_round_goes_no_further_than_what_others_have(stores: Stores, store: OpenStore) -> None:
    """Else a slave would copy what it lacks from a log with gaps, or a fail-over would cut what was compacted."""

    def end_of_round(opened: OpenStore, needed_from: int = 1 << 62) -> int:
        handle = cast("StoreHandle", OneStore(opened.store))
        compactor = Compactor(handle, Counters(), lambda: 0, opened.clock, interval_s=1.0)
        begun = compactor._begin(needed_from, opened.store)
        return begun._end if begun is not None else 0

    work = Workload(store, "state", 2, SEED)
    work.send(150)
    slave = stores.open("slave", alone=False, segment_bytes=SEGMENT_BYTES, checkpoint_interval_s=1000.0)
    first = store.store.log.segments[2].start + 1
    while slave.store.end < first:
        slave.take_from(store, 1)
    slave.store.confirm(slave.store.end)
    slave.close()
    store = opened_again(stores, store)
    starts = [segment.start for segment in store.store.log.segments]
    assert end_of_round(store) == starts[-1] > starts[2]
    assert end_of_round(store, first) == starts[2]
    slave = stores.open("slave", alone=False, segment_bytes=SEGMENT_BYTES, checkpoint_interval_s=1000.0)
    confirmed = slave.store.confirmed
    while slave.store.end < store.store.end:
        slave.take_from(store, 1)
    assert 0 < end_of_round(slave) <= confirmed < slave.store.log.active.start


def test_a_damaged_record_lets_compaction_begin_anew(stores: Stores, store: OpenStore) -> None:
    work = Workload(store, "state", 2, SEED)
    work.send(200)
    work.store = store = opened_again(stores, store)
    compact(store)
    path = store.store.log.path / COMPACTED
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert load_record(store.store.log.path).position == 0
    compact(store)
    assert load_record(store.store.log.path).position > 0
    work.check()
