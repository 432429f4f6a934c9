"""The store: what is appended is read, in order, whatever happens in between."""

from __future__ import annotations

import itertools
import random
import threading
import time

import pytest

from minimq_broker.state.facts import Fact, Topic, TopicSet
from minimq_broker.state.state import BatchApplied, State
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import NoPermission, QueueNotFound, StoreError, TopicNotFound
from minimq_common.model import Permission
from support.stores import TIMEOUT_S, OpenStore, Stores, batches_of, make_batch

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


def test_reading_begins_at_any_offset_also_within_a_batch(store: OpenStore) -> None:
    every = fill(store, [1, 5, 3, 1, 7])

    for offset in range(len(every) + 1):
        assert store.bodies("t", 0, offset) == every[offset:]
    assert store.bodies("t", 1) == []
    assert store.store.bounds(store.key("t", 0)) == (0, 17)
    assert store.store.bounds(store.key("t", 1)) == (0, 0)


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


@pytest.mark.parametrize(
    ("topic", "queue_id", "error"),
    [("absent", 0, TopicNotFound), ("t", 2, QueueNotFound), ("t", -1, QueueNotFound), ("readonly", 0, NoPermission)],
)
def test_a_rejected_append_leaves_no_trace_and_hinders_no_other(
    store: OpenStore, topic: str, queue_id: int, error: type[Exception]
) -> None:
    store.create_topic("readonly", 1, Permission.READ)
    end = store.state.position
    rejected = store.submit(topic, queue_id, make_batch([b"rejected"]))
    accepted = store.submit("t", 0, make_batch([b"accepted"]))

    with pytest.raises(error, match=topic):
        rejected.result(TIMEOUT_S)
    assert accepted.result(TIMEOUT_S).base_offset == 0
    assert store.bodies("t", 0) == [b"accepted"]
    assert store.read("t", 0, 0)[0].position == end


def test_a_commit_is_a_sync(store: OpenStore) -> None:
    for segment in store.store.log.segments:
        flags = segment._env.flags()
        assert flags["sync"]
        assert flags["metasync"]
        assert not flags["writemap"]


def test_what_is_committed_and_not_told_yet_is_not_read(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    applying, go_on = threading.Event(), threading.Event()
    apply = store.store.state.apply

    def wait_and_apply(entry: Fact | BatchApplied, position: int, at_ms: int) -> None:
        applying.set()
        go_on.wait(TIMEOUT_S)
        apply(entry, position, at_ms)

    monkeypatch.setattr(store.store.state, "apply", wait_and_apply)
    job = store.submit("t", 0, make_batch([b"x"]))
    assert applying.wait(TIMEOUT_S)

    assert batches_of(store.store, store.key("t", 0), 0, 10, 1 << 20) == []
    go_on.set()
    job.result(TIMEOUT_S)
    assert store.bodies("t", 0) == [b"x"]


def test_a_decision_sees_all_that_came_before_it(store: OpenStore) -> None:
    """Ten at the same time create the topic if it is not there: one does."""

    def create(state: State) -> Fact | None:
        return None if "new" in state.topics else TopicSet(Topic("new", state.position, 1, 1))

    jobs = [store.submit_fact(create) for _ in range(10)]
    appended = store.submit("new", 0, make_batch([b"x"]))

    assert [job.result(TIMEOUT_S) is not None for job in jobs] == [True] + [False] * 9
    assert appended.result(TIMEOUT_S).base_offset == 0


def test_segments_roll_and_are_read_as_one(stores: Stores) -> None:
    store = stores.open(segment_bytes=SMALL)
    store.create_topic("t", 2)
    store.create_topic("late", 1)
    every = [b"%06d" % number + bytes(20_000) for number in range(60)]
    for number, each in enumerate(every):
        assert store.append("t", 0, each) == number
    store.append("late", 0, b"in the last segment only")

    log = store.store.log
    assert len(log.segments) >= 5
    assert [segment.sealed for segment in log.segments] == [True] * (len(log.segments) - 1) + [False]
    assert log.end == store.state.position
    assert all(segment.start == former.end for former, segment in itertools.pairwise(log.segments))
    for offset in range(0, 60, 7):
        assert store.bodies("t", 0, offset) == every[offset:]
    assert [stored.base_offset for stored in store.read("t", 0, 3, max_messages=30)] == list(range(3, 33))
    assert store.bodies("late", 0) == [b"in the last segment only"]
    assert store.bodies("t", 1) == []

    store.close()
    again = stores.open(segment_bytes=SMALL)
    assert again.bodies("t", 0) == every
    assert again.append("t", 0, b"more") == 60
    assert again.append("t", 1, b"first") == 0


def test_a_full_map_rolls_to_the_next_segment(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minimq_broker.log.segment._MAP_SLACK_BYTES", 0)
    store = stores.open(segment_bytes=1 << 20)
    store.create_topic("t")
    # Two of them do not fit into one map, though the first alone does not make the segment full.
    every = [bytes([number]) * 600_000 for number in range(4)]

    assert [store.append("t", 0, each) for each in every] == [0, 1, 2, 3]
    assert len(store.store.log.segments) == 4
    assert store.bodies("t", 0) == every


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


def test_a_clock_that_goes_back_does_not_disorder_a_queue(stores: Stores, store: OpenStore) -> None:
    times = []
    for step in (0, 1000, -5000, 100, -3, 10_000):
        stores.clock.now_ms += step
        times.append(store.submit("t", 0, make_batch([b"x"])).result(TIMEOUT_S).stored_ms)
    first = times[0]

    assert [stored_ms - first for stored_ms in times] == [0, 1000, 1000, 1000, 1000, 6097]
    store.close()
    stores.clock.now_ms = 1
    again = stores.open()
    assert again.submit("t", 0, make_batch([b"x"])).result(TIMEOUT_S).stored_ms - first == 6097
    assert again.submit("t", 1, make_batch([b"x"])).result(TIMEOUT_S).stored_ms == 1


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
