"""The retry worker sends back failed messages of queues that this consumer still has."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from minimq import Message, MessageQueue, ReceivedMessage
from minimq.receiving.listening.delivery_outcomes import Failed, RetryWorker
from minimq.receiving.listening.in_flight import Delivery, InFlightDeliveries, InFlightLimits
from minimq.receiving.received import EncodedBatch, ReceivedBatch
from minimq_common.batch.builder import BatchBuilder
from support.waiting import wait_until

KEPT, LOST = (MessageQueue("orders", "broker-a", number) for number in range(2))


def take(in_flight: InFlightDeliveries, queue: MessageQueue, count: int) -> Delivery:
    builder = BatchBuilder(1 << 20)
    builder.add([Message(queue.topic, b"x")] * count)
    taken = ReceivedBatch(queue, EncodedBatch(0, 0, 0, count, builder.build(1, 1, 0))).messages(0)
    in_flight.start(queue, 0)
    in_flight.blocked()
    [delivery] = in_flight.take(taken, [taken], lambda _: None)
    return delivery


@pytest.mark.parametrize("lost", ["away", "and granted anew"])
def test_messages_of_a_queue_that_was_lost_are_left_to_its_owner(lost: str) -> None:
    in_flight = InFlightDeliveries(InFlightLimits(100, 1000, 100), lambda: None, one_at_a_time=False)
    gone, mine = take(in_flight, LOST, 3), take(in_flight, KEPT, 4)
    sent: list[Failed] = []
    done: dict[Delivery, list[ReceivedMessage]] = {}

    def send(failed: Sequence[Failed]) -> list[bool]:
        sent.extend(failed)
        return [number > 0 for number in range(len(failed))]  # the first one is not taken

    worker = RetryWorker(send, in_flight.is_current, done.__setitem__, "returns")
    in_flight.drop([LOST])
    if lost == "and granted anew":
        in_flight.start(LOST, 0)
    worker.put(gone, None)
    worker.put(mine, 2)
    worker.start()
    wait_until(lambda: len(done) == 2)
    worker.close(5.0)
    assert sent == [Failed(message, 2) for message in mine.messages]
    assert done == {gone: [], mine: [mine.messages[0]]}
