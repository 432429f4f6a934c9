"""The dispatcher of a push consumer that has queues to itself, between its callbacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from minimq import Message, MessageQueue
from minimq.receiving.listening.in_flight import InFlightDeliveries, InFlightLimits, Suspects
from minimq.receiving.listening.queue_dispatcher import QueueDispatcher
from minimq.receiving.received import EncodedBatch, ReceivedBatch
from minimq_common.batch.builder import BatchBuilder

SUSPECT, NEW = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)


class Taker:
    """Has one message of a queue that a callback has brought, and notes what is taken again."""

    def __init__(self) -> None:
        builder = BatchBuilder(1 << 20)
        builder.add([Message("orders", b"a")])
        self.messages = ReceivedBatch(NEW, EncodedBatch(0, 0, 0, 1, builder.build(1, 1, 0))).messages(0)
        self.taken_again: list[int] = []


def test_messages_of_a_queue_that_came_while_suspects_were_taken_are_given_back() -> None:
    dispatcher: Any = QueueDispatcher.__new__(QueueDispatcher)
    dispatcher._batch_size, dispatcher._waits_since = 1, 0.0
    dispatcher._in_flight = InFlightDeliveries(InFlightLimits(10, 1000, 20), lambda: None, one_at_a_time=False)
    dispatcher._calls = SimpleNamespace(flush=lambda: None)
    taker = Taker()
    dispatcher._fetcher = SimpleNamespace(queues=[SUSPECT], has_any=None)
    dispatcher._client = SimpleNamespace(run=lambda _, queues: bool(queues))
    dispatcher._take_messages = lambda *_: taker.messages
    dispatcher._take_again = taker.taken_again.append
    assert not dispatcher._take_alone({SUSPECT: Suspects(0, 1, 1, 1)})
    assert taker.taken_again == [1]
