"""Which queue the next batch goes to."""

from __future__ import annotations

from minimq.queue_selection import RoundRobin
from minimq_common.model import MessageQueue

QUEUES = [MessageQueue("t", broker, number) for broker in "ab" for number in range(2)]


def test_queues_take_turns() -> None:
    turn = RoundRobin(3)
    chosen = [turn.select(QUEUES, lambda _: True) for _ in range(6)]
    assert chosen == [QUEUES[number] for number in (3, 0, 1, 2, 3, 0)]


def test_unusable_queues_are_passed_over() -> None:
    turn = RoundRobin(0)
    chosen = [turn.select(QUEUES, lambda queue: queue.broker_name == "b") for _ in range(3)]
    assert chosen == [QUEUES[2], QUEUES[3], QUEUES[2]]


def test_no_usable_queue_leaves_the_turn_where_it_was() -> None:
    turn = RoundRobin(1)
    assert turn.select(QUEUES, lambda _: False) is None
    assert turn.select([], lambda _: True) is None
    assert turn.select(QUEUES, lambda _: True) == QUEUES[1]


def test_the_number_of_queues_may_change() -> None:
    turn = RoundRobin(10**9)
    assert turn.select(QUEUES, lambda _: True) == QUEUES[0]
    assert turn.select(QUEUES[:1], lambda _: True) == QUEUES[0]
    assert turn.select(QUEUES, lambda _: True) == QUEUES[0]
