"""The store: what is appended is read, in order, whatever happens in between."""

from __future__ import annotations

import itertools
import random
import threading
import time

import pytest

from minimq_common.batch.records import RecordBatch
from minimq_common.errors import StoreError
from support.kernel_stores import TIMEOUT_S, OpenStore, Stores, batches_of, make_batch

SMALL = 256 << 10


def body(number: int) -> bytes:
    return b"body-%06d" % number


def fill(store: OpenStore, sizes: list[int], topic: str = "t", queue_id: int = 0) -> list[bytes]:
    """Append batches of these sizes to an empty queue, and return all bodies."""
    numbers = itertools.count()
    every: list[bytes] = []
    for size in sizes:
        bodies = [body(next(numbers)) for _ in range(size)]
        assert store.append(topic, queue_id, *bodies) == len(every)
        every += bodies
    return every


def test_a_read_stops_after_the_batch_that_reaches_a_bound(store: OpenStore) -> None:
    fill(store, [4, 4, 4])

    def counts(offset: int, max_messages: int = 1000, max_bytes: int = 1 << 20) -> list[int]:
        return [stored.base_offset for stored in store.read("t", 0, offset, max_messages, max_bytes)]

    assert counts(0, max_messages=1) == [0]
    assert counts(0, max_messages=4) == [0]
    assert counts(0, max_messages=5) == [0, 4]
    assert counts(3, max_messages=1) == [0]
    assert counts(3, max_messages=2) == [0, 4]
    assert counts(0, max_bytes=1) == [0]
    entry_bytes = store.read("t", 0, 4)[0].position - store.read("t", 0, 0)[0].position
    assert counts(0, max_bytes=entry_bytes) == [0]
    assert counts(0, max_bytes=entry_bytes + 1) == [0, 4]


def test_a_commit_is_a_sync(store: OpenStore) -> None:
    for segment in store.store.log.segments:
        flags = segment._env.flags()
        assert flags["sync"]
        assert flags["metasync"]
        assert not flags["writemap"]


def test_what_fits_into_no_segment_is_rejected_and_the_store_goes_on(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minimq_broker.log.segment._MAP_SLACK_BYTES", 0)
    store = stores.open(segment_bytes=1 << 20)
    store.create_topic("t")

    with pytest.raises(StoreError, match="does not fit into a segment"):
        store.append("t", 0, bytes(2 << 20))
    assert store.append("t", 0, b"small") == 0
    assert store.bodies("t", 0) == [b"small"]


@pytest.mark.replaced_by("machine")
def test_a_clock_that_goes_back_does_not_disorder_a_queue(stores: Stores, store: OpenStore) -> None:
    times = []
    for step in (0, 1000, -5000, 100, -3, 10_000):
        stores.clock.now_ms += step
        times.append(store.submit("t", 0, make_batch([b"x"])).result(TIMEOUT_S).place.stored_ms)
    first = times[0]

    assert [stored_ms - first for stored_ms in times] == [0, 1000, 1000, 1000, 1000, 6097]
    store.close()
    stores.clock.now_ms = 1
    again = stores.open()
    assert again.submit("t", 0, make_batch([b"x"])).result(TIMEOUT_S).place.stored_ms - first == 6097
    assert again.submit("t", 1, make_batch([b"x"])).result(TIMEOUT_S).place.stored_ms == 1


@pytest.mark.parametrize("seed", range(4))
def test_the_offset_at_a_time_is_that_of_a_plain_search(stores: Stores, seed: int) -> None:
    chance = random.Random(seed)
    store = stores.open(segment_bytes=128 << 10)
    store.create_topic("other")
    store.create_topic("t", 2)
    start = stores.clock.now_ms
    model: list[int] = []  # store time of each offset
    for _ in range(60):
        stores.clock.now_ms += chance.choice([0, 0, 1, 3, 50])
        count = chance.randint(1, 4)
        store.append("other", 0, bytes(2000))
        store.append("t", 1, *[bytes(chance.randint(1, 3000))] * count)
        model += [stores.clock.now_ms] * count
    queue = store.key("t", 1)

    assert len(store.store.log.segments) > 2
    for when in range(start - 2, stores.clock.now_ms + 3):
        wanted = next((offset for offset, stored_ms in enumerate(model) if stored_ms >= when), len(model))
        assert store.store.offset_at(queue, when) == wanted, when
    assert store.store.offset_at(queue, 0) == 0
    assert store.store.offset_at(queue, (1 << 63) - 1) == len(model)
    assert store.store.offset_at(store.key("t", 0), start) == 0


def test_readers_see_whole_batches_while_the_writer_writes(stores: Stores) -> None:
    store = stores.open(segment_bytes=SMALL)
    store.create_topic("t")
    queue = store.key("t", 0)
    stop = threading.Event()
    troubles: list[str] = []

    def read_all_the_time() -> None:
        while not stop.is_set():
            _, end = store.store.bounds(queue)
            at = 0
            while at < end:
                part = batches_of(store.store, queue, at, 1 << 40, 1 << 20)
                if not part or part[0].base_offset != at:
                    troubles.append(f"at {at} of {end}: {[stored.base_offset for stored in part]}")
                    return
                for stored in part:
                    RecordBatch(stored.data)
                at = part[-1].base_offset + part[-1].count

    readers = [threading.Thread(target=read_all_the_time) for _ in range(2)]
    for reader in readers:
        reader.start()
    until = time.monotonic() + 1.0
    while time.monotonic() < until or len(store.store.log.segments) == 1:
        store.append("t", 0, *[bytes(3000)] * 3)
    stop.set()
    for reader in readers:
        reader.join()

    assert troubles == []
    assert len(store.store.log.segments) > 1


def test_grown_queues_are_told_once_their_batches_can_be_read(store: OpenStore) -> None:
    store.append("t", 1, b"x")
    assert store.grown == [store.key("t", 1)]
