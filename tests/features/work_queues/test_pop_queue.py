"""Queues that are popped: bounds, poison, wrong answers and facts; the store machine plays everything else."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import TypeVar

import msgspec
import pytest

from minimq_broker.features.work_queues import pop_blocks, pop_queue
from minimq_broker.features.work_queues.pop_queue import PopQueue
from minimq_broker.features.work_queues.pop_runs import (
    MAX_HELD,
    Leave,
    PopMoved,
    PopOutcome,
    QueueMoved,
    Run,
    RunState,
    Settle,
    Take,
)
from minimq_broker.state.facts import decode_fact, encode_fact
from minimq_common.errors import StoreError
from support.cases import for_each

T = TypeVar("T")

TOPIC = 17


@pytest.fixture
def few_bitmaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_queue, "MAX_BITMAPS", 8)


def taken(queue: PopQueue, most: int, *, now_ms: int = 0, end: int = 1_000_000, epoch: int = 1) -> list[Run]:
    runs = queue.take(Take("a", most, now_ms + 10, present=frozenset("a")), now_ms, end, epoch)
    for run in runs:
        queue.put(run)
    queue.refresh()
    return runs


def test_a_consumer_that_takes_without_end_gets_no_more_than_the_limit() -> None:
    queue = PopQueue()
    while taken(queue, 30_000):
        pass
    assert queue.held == MAX_HELD


def put(queue: PopQueue, settle: Settle) -> None:
    for run in queue.settle(settle)[0]:
        queue.put(run)
    queue.refresh()


def test_a_full_queue_delivers_no_new_messages_until_some_are_settled(few_bitmaps: None) -> None:
    queue = PopQueue()
    taken(queue, 100)
    for at in range(1, 20, 2):
        put(queue, Settle(1, [(at, at + 1)], PopOutcome.FREE, 1_000 + at))
    assert queue.is_full
    assert taken(queue, 1, now_ms=5) == []
    for at in range(20):
        put(queue, Settle(1, [(at, at + 1)], PopOutcome.DONE))
    assert taken(queue, 1, now_ms=5, epoch=2) == [Run(100, 101, RunState.OUT, 1, 15, 2, "a")]


def test_redeliveries_of_a_full_queue_add_few_bitmaps(few_bitmaps: None) -> None:
    queue = PopQueue()
    taken(queue, 1_000)
    put(queue, Settle(1, [(0, 1_000)], PopOutcome.FREE))
    for now in range(1, 600):  # each waits until another time
        for run in taken(queue, 1, now_ms=now, end=1_000, epoch=now + 1):
            put(queue, Settle(run.epoch, [(run.first, run.end)], PopOutcome.FREE, 10_000 + now))
    assert len(queue) <= pop_blocks.BLOCK + 8
    worked = 0
    while runs := taken(queue, 1, now_ms=20_000 + worked, end=1_000, epoch=20_000 + worked):
        worked += 1
        for run in runs:
            put(queue, Settle(run.epoch, [(run.first, run.end)], PopOutcome.DONE))
    assert (worked, queue.done, len(queue)) == (1_000, 1_000, 0)


def test_a_message_that_kills_its_consumers_comes_alone_in_the_end() -> None:
    queue, now, sizes = PopQueue(), 0, list[int]()
    for _ in range(300):
        runs = taken(queue, 512, now_ms=now, end=512, epoch=now + 1)
        if not runs:
            break
        sizes.append(sum(run.count for run in runs))
        now += 10
        if any(run.first <= 300 < run.end for run in runs):
            continue  # it dies with all that it has
        for run in runs:
            put(queue, Settle(run.epoch, [(run.first, run.end)], PopOutcome.DONE))
    assert sizes[0] == 512
    assert sizes[-1] == 1
    assert [(run.first, run.end) for run in queue.runs if run.state is not RunState.DONE] == [(300, 301)]


@for_each("poison", [0, 17, 40, 63])
def test_three_tries_are_enough_for_what_is_delivered_with_a_message_that_kills_its_consumers(poison: int) -> None:
    queue, now_ms = PopQueue(), 0
    dead, settled = set[int](), set[int]()
    while len(dead | settled) < 100:
        runs = taken(queue, 32, now_ms=now_ms, end=100)
        offsets = [at for run in runs for at in range(run.first, run.end)]
        if runs[0].delivery_count > 3:
            dead.update(offsets)
        elif poison in offsets:
            now_ms += 20  # nothing is settled before the consumer dies
            continue
        settled.update(offsets)
        put(queue, Settle(1, [(run.first, run.end) for run in runs], PopOutcome.DONE))
    assert dead == {poison}


def test_a_fact_out_of_its_bounds_is_rejected() -> None:
    fact = PopMoved("workers", (QueueMoved(TOPIC, 0, (Run(0, 4, RunState.OUT, 1, 5, 6, "a"),)),))
    assert decode_fact(encode_fact(fact)) == fact
    for wrong in (
        Run(-1, 4, RunState.OUT),
        Run(0, 4, RunState.OUT, -1),
        Run(0, 1 << 63, RunState.OUT),
        Run(0, 4, 3),  # type: ignore[arg-type]
        Run(0, 4, RunState.OUT, 1, 5, 6, "a" * 513),
    ):
        with pytest.raises(StoreError):
            decode_fact(encode_fact(PopMoved("workers", (QueueMoved(TOPIC, 0, (wrong,)),))))
    queue = PopQueue(5)
    for wrong in (Run(4, 6, RunState.OUT), Run(6, 7, RunState.OUT), Run(5, 5, RunState.OUT)):
        queue.put(wrong)  # no decision leads to it
    assert queue.runs == []


def traced_bytes(make: Callable[[], T]) -> tuple[T, int]:
    """Return what is made, and the memory that it takes."""
    tracemalloc.start()
    try:
        made = make()
        return made, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_million_messages_without_an_answer_take_little_memory() -> None:
    def make() -> list[PopQueue]:
        queues = [PopQueue() for _ in range(1_000_000 // MAX_HELD)]
        for number, queue in enumerate(queues):
            epoch = 0
            while taken(queue, 50, epoch=(epoch := epoch + 1) << 40 | number):
                pass
        return queues

    queues, size = traced_bytes(make)
    assert sum(queue.held for queue in queues) == 1_000_000
    assert sum(map(len, queues)) < 24_000  # one or two bitmaps for each take, as each has a handle of its own
    assert size < 10 << 20
    for queue in queues:
        assert queue.take(Take("b", 1, 10), 5, 1 << 40, 7) == []
        before = queue.runs
        assert queue.freed(Leave("b")) == []
        assert queue.runs == before


#: A sixty-fourth of four million messages.
SPAN = 62_500


def waiting(span: int, *, fifo: bool) -> PopQueue:
    """Return a queue with repetitions of a settled, a waiting, a released and a settled message, after a failed one."""
    queue, status = PopQueue(), (RunState.DONE, RunState.FREE, RunState.FREE, RunState.DONE)
    queue.put(Run(0, 4, RunState.FREE, 3, 1 << 40, 5, group_hash=int(fifo)))
    for at in range(4, span, 4):
        for number, state in enumerate(status):
            released = (2, (1 << 40) + at // 1_000, 5) if number == 2 else (0, 0, 0)
            queue.put(Run(at + number, at + number + 1, state, *released, group_hash=fifo * (1 + at // 4 % 50)))
    queue.refresh()
    return queue


@for_each("fifo", [False, True])
def test_a_span_of_four_million_messages_takes_little_memory_and_disk(fifo: bool) -> None:
    queue, size = traced_bytes(lambda: waiting(SPAN, fifo=fifo))
    assert (queue.done, queue.next, queue.unsettled_before(SPAN)) == (0, SPAN, SPAN // 2 + 2)
    assert not queue.is_full
    assert 64 * size < (80 if fifo else 40) << 20
    rows = [msgspec.msgpack.encode(queue.block_row(number)) for number in queue.blocks()]
    assert 64 * sum(map(len, rows)) < (16 if fifo else 4) << 20
