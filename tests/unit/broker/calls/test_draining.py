"""The groups that have not read queues which are about to be hidden."""

from __future__ import annotations

from minimq_broker.calls.draining import Bounds, Lag, find_lags
from minimq_broker.state.facts import CommittedOffset, Fact, GroupStarted, OffsetsCommitted
from minimq_broker.state.state import QueueKey, State

TOPIC = 7
OTHER = 8


def state_of(*facts: Fact) -> State:
    state = State()
    for position, fact in enumerate(facts):
        state.apply(fact, position)
    return state


def at(queue_id: int, offset: int, topic_id: int = TOPIC) -> CommittedOffset:
    return CommittedOffset(topic_id, queue_id, offset)


def queues(*bounds: tuple[int, int], first_id: int = 4) -> dict[QueueKey, Bounds]:
    return {QueueKey(TOPIC, first_id + number): pair for number, pair in enumerate(bounds)}


def test_a_group_that_has_read_all_does_not_lag() -> None:
    state = state_of(OffsetsCommitted("audit", (at(4, 10), at(5, 3))))
    assert find_lags(state, queues((0, 10), (0, 3), (6, 6))) == []


def test_each_group_lags_by_what_it_has_not_read() -> None:
    state = state_of(
        OffsetsCommitted("audit", (at(4, 10), at(5, 10))),
        OffsetsCommitted("billing", (at(4, 9), at(5, 10))),
        OffsetsCommitted("archive", (at(4, 1),)),
        OffsetsCommitted("elsewhere", (at(4, 0, OTHER),)),
    )
    assert find_lags(state, queues((0, 10), (0, 10))) == [Lag("archive", 19, (4, 5)), Lag("billing", 1, (4,))]


def test_what_is_not_stored_any_more_cannot_be_unread() -> None:
    state = state_of(OffsetsCommitted("audit", (at(4, 2),)))
    assert find_lags(state, queues((7, 10))) == [Lag("audit", 3, (4,))]
    assert find_lags(state, queues((10, 10))) == []


def test_a_group_whose_start_is_decided_counts_from_there() -> None:
    state = state_of(GroupStarted("late", TOPIC, (at(4, 10),)))
    assert find_lags(state, queues((0, 10))) == []
    assert find_lags(state, queues((0, 10), (0, 2))) == [Lag("late", 2, (5,))]  # a queue that came later
    assert find_lags(state_of(GroupStarted("new", TOPIC, ())), queues((0, 1))) == [Lag("new", 1, (4,))]


def test_what_no_group_has_read_is_a_reason_too() -> None:
    assert find_lags(state_of(), queues((0, 3), (1, 1))) == [Lag(None, 3, (4,))]
    assert find_lags(state_of(), queues((0, 0), (1, 1))) == []
