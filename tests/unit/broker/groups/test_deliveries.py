"""Deliveries that did not end: which of them count as tries."""

from __future__ import annotations

from minimq_broker.groups.deliveries import OwnedQueue, after_death, withdrawn
from minimq_broker.state.facts import CommittedOffset, Deliveries, Fact, OffsetsCommitted, Topic, TopicSet
from minimq_broker.state.queue_ends import QueueEnd, QueueKey
from minimq_broker.state.state import State
from minimq_broker.state.state_rows import changed_rows, load_row

QUEUE = QueueKey(1, 0)
KEY = ("g", *QUEUE)
MINE = OwnedQueue(QUEUE, 7)


class Log:
    def __init__(self, end: int = 10) -> None:
        self.state = State()
        self.apply(TopicSet(Topic("t", 1, 1, 1)))
        self.state.ends[QUEUE] = QueueEnd(end)

    def apply(self, fact: Fact | None) -> None:
        if fact is not None:
            self.state.apply(fact, self.state.position + 1)

    def commit(self, offset: int, delivery_count: int | None = None, epoch: int = 0, end: int = 0) -> None:
        self.apply(OffsetsCommitted("g", (CommittedOffset(*QUEUE, offset, delivery_count, epoch, end),)))

    @property
    def deliveries(self) -> Deliveries | None:
        return self.state.deliveries.get(KEY)


def test_a_death_with_messages_left_counts_once() -> None:
    log = Log()
    log.commit(4, 0)
    log.apply(after_death("g", [MINE], log.state))
    assert log.deliveries == Deliveries(1, 7)
    log.apply(after_death("g", [OwnedQueue(QUEUE, 8)], log.state))  # it had delivered nothing yet
    assert log.deliveries == Deliveries(1, 7)


def test_a_death_at_the_end_of_a_queue_counts_nothing() -> None:
    log = Log()
    log.commit(10, 0)
    assert after_death("g", [MINE], log.state) is None


def test_progress_ends_what_did_not_end_and_a_repeated_commit_keeps_it() -> None:
    log = Log()
    log.commit(4, 2, 7, 5)
    log.commit(4)
    assert log.deliveries == Deliveries(2, 7, 5)
    log.commit(4, 0, 7)
    assert log.deliveries is None
    log.commit(4, 2, 7, 5)
    log.commit(5)
    assert log.deliveries is None


def test_a_member_that_lives_takes_back_its_own_delivery_once() -> None:
    log = Log()
    log.commit(4, 3, 7, 5)
    assert withdrawn("g", [OwnedQueue(QUEUE, 6)], log.state) is None
    log.apply(withdrawn("g", [MINE], log.state))
    assert log.deliveries == Deliveries(2, 0, 5)
    assert withdrawn("g", [MINE], log.state) is None


def test_they_outlive_a_restart_and_go_with_the_offsets() -> None:
    log = Log()
    log.commit(4, 3, 7, 5)
    again = State()
    for row, value in changed_rows(log.state):
        if value is not None:
            load_row(again, row, value)
    assert again.deliveries == {KEY: Deliveries(3, 7, 5)}
    log.apply(OffsetsCommitted("g", (CommittedOffset(*QUEUE, 0),), forced=True))
    assert log.deliveries is None
