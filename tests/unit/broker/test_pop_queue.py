"""Queues that are popped: bounds, poison, wrong answers and facts; `test_pop_schedules.py` plays everything else."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import TypeVar

import pytest

from minimq_broker.core.facts import decode_fact, encode_fact
from minimq_broker.core.popping import pop_queue
from minimq_broker.core.popping.pop_queue import PopQueue
from minimq_broker.core.popping.pop_runs import (
    MAX_HELD,
    MAX_RUNS,
    Claim,
    Leave,
    PopKey,
    PopMoved,
    PopOutcome,
    QueueMoved,
    Reopen,
    Run,
    RunState,
    Settle,
    Take,
    handle_epoch,
)
from minimq_broker.services.popping.popping import MAX_RUNS_IN_ALL
from minimq_broker.store.popping.pop_drafts import PopDraft
from minimq_common.errors import InvalidArgument, OffsetOutOfRange, StoreError, SystemBusy
from support.cases import for_each

T = TypeVar("T")

TOPIC = 17
KEY = PopKey("workers", TOPIC, 0)


@pytest.fixture
def few_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_queue, "MAX_RUNS", 8)


def taken(queue: PopQueue, most: int, *, now_ms: int = 0, end: int = 1_000_000, epoch: int = 1) -> list[Run]:
    runs = queue.take(Take("a", most, now_ms + 10, present=frozenset("a")), now_ms, end, epoch)
    for run in runs:
        queue.put(run)
    return runs


def test_a_consumer_that_takes_without_end_gets_no_more_than_the_limit() -> None:
    queue = PopQueue()
    while taken(queue, 30_000):
        pass
    assert queue.held == MAX_HELD


def put(queue: PopQueue, settle: Settle) -> SystemBusy | None:
    """Settle, and return why a part was refused."""
    runs, _, busy = queue.settle(settle)
    for run in runs:
        queue.put(run)
    return busy


def test_many_pieces_stop_new_messages_and_no_answers_that_mend_it(few_pieces: None) -> None:
    queue = PopQueue()
    taken(queue, 100)
    busy = put(queue, Settle(1, [(at, at + 1) for at in range(1, 40, 2)], PopOutcome.DONE))
    assert busy is not None
    assert "13 messages from offset 15 on are not settled" in busy.message
    assert [run.first for run in queue.runs if run.state is RunState.DONE] == [1, 3, 5, 7, 9, 11, 13]
    assert taken(queue, 100) == []
    assert put(queue, Settle(1, [(15, 16)], PopOutcome.DONE)) is not None
    assert put(queue, Settle(1, [(at, at + 1) for at in range(15, 40, 2)] + [(99, 100)], PopOutcome.DONE)) is not None
    assert put(queue, Settle(1, [(0, 3), (4, 5), (15, 16)], PopOutcome.DONE)) is None  # there are fewer in the end
    assert put(queue, Settle(1, [(0, 100)], PopOutcome.DONE)) is None
    assert (queue.done, len(queue), queue.held) == (100, 0, 0)
    assert taken(queue, 5)


def test_an_answer_that_may_not_divide_settles_the_oldest_messages() -> None:
    queue = PopQueue()
    taken(queue, 10)
    assert put(queue, Settle(1, [(0, 2), (5, 6)], PopOutcome.DONE, may_divide=False)) is not None
    assert (queue.done, len(queue)) == (2, 1)


def test_failures_one_by_one_make_no_more_pieces_than_the_limit(few_pieces: None) -> None:
    queue = PopQueue()
    taken(queue, 1_000)
    put(queue, Settle(1, [(0, 1_000)], PopOutcome.FREE))
    count = 0
    for now in range(1, 200):  # each is to wait until another time
        for run in taken(queue, 1, now_ms=now, end=1_000, epoch=now + 1):
            count += 1
            put(queue, Settle(run.epoch, [(run.first, run.end)], PopOutcome.FREE, 10_000 + now))
    assert count == len(queue) - 1 == 15
    now, worked = 20_000, 0
    while runs := taken(queue, 1, now_ms=now, end=1_000, epoch=now):  # time is over: all of it can be done
        worked += 1
        for run in runs:
            put(queue, Settle(run.epoch, [(run.first, run.end)], PopOutcome.DONE))
        now += 1
    assert (worked, queue.done) == (1_000, 1_000)


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
            for after in queue.settle(Settle(run.epoch, [(run.first, run.end)], PopOutcome.DONE))[0]:
                queue.put(after)
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
        if runs[0].tries > 3:
            dead.update(offsets)
        elif poison in offsets:
            now_ms += 20  # nothing is settled before the consumer dies
            continue
        settled.update(offsets)
        put(queue, Settle(1, [(run.first, run.end) for run in runs], PopOutcome.DONE))
    assert dead == {poison}


@for_each("spans", [[(0, 11)], [(5, 5)], [(6, 5)], [(-1, 3)], [(4, 6), (2, 3)], [(4, 6), (5, 7)], [(0, 2), (9, 11)]])
def test_an_answer_to_what_was_not_handed_out_changes_nothing(spans: list[tuple[int, int]]) -> None:
    queue = PopQueue()
    taken(queue, 10)
    before = queue.row()
    with pytest.raises(InvalidArgument, match="delivered end at 9"):
        queue.settle(Settle(1, spans, PopOutcome.DONE))
    assert queue.row() == before


def test_messages_without_a_lane_in_a_fifo_topic_do_not_wait_for_each_other() -> None:
    """Batches that could not be read have none; the first one is set aside for an hour."""
    aside = Run(0, 1, RunState.FREE, 1, 3_600_000, 1)
    queue = PopQueue(0, [aside, Run(1, 2, RunState.OUT, 1, 500, 1, "a", lane=7), Run(2, 3, RunState.FREE)])
    assert queue.due_ms == 0


def test_an_answer_to_a_hand_out_of_before_a_reset_comes_too_late() -> None:
    queue = PopQueue()
    taken(queue, 10)
    unknown = 99
    spans = [(0, 2), (5, 40), (40, 50)]
    assert queue.settle(Settle(unknown, spans, PopOutcome.DONE)) == ([], spans, None)


def test_an_answer_and_a_take_that_passes_over_what_is_deleted_make_one_fact() -> None:
    queue = PopQueue()
    taken(queue, 40)
    draft = PopDraft(queue)
    draft.put(draft.queue.settle(Settle(1, [(5, 9), (12, 16), (30, 32)], PopOutcome.DONE))[0])
    assert draft.drop_before(14) == 14 - 4 - 2
    draft.put(draft.queue.take(Take("b", 10, 50), 0, 60, 2))
    moved = draft.changes(KEY)
    assert moved is not None
    queue.drop_before(moved.done)
    for run in moved.runs:
        queue.put(run)
    assert queue.row() == draft.queue.row()


def test_a_fact_out_of_its_bounds_is_refused() -> None:
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
    with pytest.raises(StoreError, match="were popped"):
        PopQueue(5).put(Run(4, 6, RunState.OUT))


def test_handles_differ_between_terms_and_positions() -> None:
    assert len({handle_epoch(term, position) for term in range(9) for position in range(0, 900, 100)}) == 81
    assert handle_epoch((1 << 31) - 1, 1 << 62) < 1 << 63


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
    assert sum(map(len, queues)) == 10 * MAX_HELD // 50
    assert size < 10 << 20  # a run for each take, as each has a handle of its own
    for queue in queues:
        assert queue.take(Take("b", 1, 10), 5, 1 << 40, 7) == []
        before = queue.row()
        assert queue.freed(Leave("b")) == []
        assert queue.row() == before


def test_half_a_million_runs_take_as_much_memory_as_is_written() -> None:
    def make() -> PopQueue:
        queue = PopQueue()
        taken(queue, 2 * MAX_RUNS, epoch=1 << 40)
        for at in range(1, 2 * MAX_RUNS, 2):
            assert put(queue, Settle(1 << 40, [(at, at + 1)], PopOutcome.FREE, (1 << 40) + at)) is None
        return queue

    queue, size = traced_bytes(make)
    assert len(queue) == 2 * MAX_RUNS
    assert size / len(queue) * MAX_RUNS_IN_ALL < 120_000_000


def test_settled_messages_are_delivered_again_with_all_tries() -> None:
    taken, settled = Run(10, 12, RunState.OUT, 3, 99, 7, "a"), Run(12, 20, RunState.DONE)
    queue = PopQueue(10, [taken, settled, Run(20, 21, RunState.FREE, 2)])
    with pytest.raises(OffsetOutOfRange, match="from 2 to 29"):
        queue.reopen(Reopen([(1, 3)]), (2, 30))
    with pytest.raises(OffsetOutOfRange):
        queue.reopen(Reopen([(20, 31)]), (2, 30))
    assert queue.reopen(Reopen([(20, 30)]), (2, 30)) == []  # they are delivered anyway
    for run in queue.reopen(Reopen([(3, 4), (8, 11), (14, 16), (20, 21)]), (2, 30)):
        queue.put(run)
    assert (queue.done, queue.next, queue.held) == (3, 21, 2)
    free = [(run.first, run.end, run.tries) for run in queue.runs if run.state is RunState.FREE]
    assert free == [(3, 4, 0), (8, 10, 0), (14, 16, 0), (20, 21, 2)]
    assert queue.unsettled_before(21) == 8
    assert [run.first for run in queue.take(Take("b", 100, 50), 1, 21, 8)] == [20]


@for_each("spans", [[(8, 9), (3, 4)], [(3, 4), (3, 4)], [(3, 6), (5, 8)], [(3, 3)], [(4, 3)]])
def test_spans_that_do_not_ascend_are_refused(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(InvalidArgument, match="spans must ascend"):
        PopQueue(10).reopen(Reopen(spans), (0, 10))
    with pytest.raises(InvalidArgument, match="spans must ascend"):
        PopQueue().claim(Claim(spans, 10))


def test_messages_are_delivered_again_until_the_queue_has_too_many_pieces(few_pieces: None) -> None:
    queue = PopQueue(1_000)
    spans = [(at, at + 1) for at in range(0, 1_000, 2)]
    with pytest.raises(SystemBusy):
        queue.reopen(Reopen(spans), (0, 1_000))
    with pytest.raises(SystemBusy):
        queue.reopen(Reopen(spans[:1], may_divide=False), (0, 1_000))
    for run in queue.reopen(Reopen(spans[:8]), (0, 1_000)):
        queue.put(run)
    assert len(queue) == 16
    with pytest.raises(SystemBusy):
        queue.reopen(Reopen(spans[8:9]), (0, 1_000))
    assert queue.reopen(Reopen(spans[:8]), (0, 1_000)) == []
