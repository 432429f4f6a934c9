"""Compaction leaves the latest message of each key, and all else as it was, compared with a dictionary."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from minimq_broker.features.compaction.compaction_file import COMPACTED, load_record, save_record
from support.chance import SEED
from support.compactions import TOMBSTONE_MS, Workload, compact, make_compacted
from support.kernel_stores import numbered_batch
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


def test_young_messages_stay(stores: Stores) -> None:
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    store.create_topic("other")
    make_compacted(store, "state", 2, min_lag_ms=60_000)
    work = Workload(store, "state", 2, SEED)
    work.send(100)
    young = work.left()
    store.clock.now_ms += 60_000
    work.send(100)
    work.store = store = opened_again(stores, store)

    compact(store)

    assert 0 < load_record(store.store.log.path).position < store.store.log.active.start
    later = sum(map(len, work.sent.values())) - young
    assert later < work.left() < later + young
    work.check()


def test_waiting_and_undecided_batches_stay_and_do_not_hold_compaction_up(stores: Stores, store: OpenStore) -> None:
    due_ms = store.clock.now_ms + 1_000
    store.delay("other", 0, due_ms, b"delayed")
    store.stage("x", 1, "other", 0, numbered_batch(9, 1, b"staged"))
    work = Workload(store, "state", 2, SEED)
    work.send(200, others=0.0)
    sent = work.left()
    work.store = store = opened_again(stores, store)

    compact(store)

    assert load_record(store.store.log.path).position == store.store.log.active.start
    assert work.left() < sent
    work.check()
    store.clock.now_ms = due_ms
    store.publish_due()
    store.decide("x", 1, {9: [1]})
    store.publish("x")
    assert store.bodies("other", 0) == [b"delayed", b"staged"]
