"""Messages that were taken ahead, and their number, by the clock of the test."""

from __future__ import annotations

from typing import Any

from minimq.features.work_queues.prefetch import Prefetched, ReceiveRate
from minimq.features.work_queues.work_queue_message import WorkQueueMessage


def messages(*numbers: int) -> list[WorkQueueMessage]:
    batch: Any = None
    return [WorkQueueMessage(batch, number, b"", None, 1, 1, "g") for number in numbers]


def taken(store: Prefetched, most: int, now: float) -> list[int]:
    into: list[WorkQueueMessage] = []
    assert store.take(most, now, into) == bool(into)
    return [message.index for message in into]


def test_messages_come_in_order_and_never_of_two_takes_at_once() -> None:
    store = Prefetched()
    store.add(messages(1, 2, 3), 10)
    store.add(messages(7, 8), 11)
    assert len(store) == 5
    assert [taken(store, 2, 0), taken(store, 2, 0), taken(store, 2, 0), taken(store, 2, 0)] == [[1, 2], [3], [7, 8], []]
    assert not len(store)


def test_what_is_late_is_not_received_but_goes_to_others() -> None:
    store = Prefetched()
    store.add(messages(1, 2), 10)
    store.add(messages(3), 11)
    assert taken(store, 1, 9.9) == [1]
    assert taken(store, 1, 10) == []
    assert [message.index for message in store.late(10)] == [2]
    assert taken(store, 1, 10) == [3]
    assert store.late(100) == []


def test_a_consumer_is_worth_as_many_messages_as_it_receives_in_a_tenth_of_a_second() -> None:
    pace = ReceiveRate()
    for step in range(100):
        pace.received(32, 1000 + step * 0.01)
    assert 300 <= pace.ahead <= 340
    pace.received(1, 1010)  # after a pause
    pace.received(1, 1011)
    assert pace.ahead == 0
