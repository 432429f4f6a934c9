"""What is sent back of calls without success: that of queues which are still this consumer's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from minimq import Message, MessageQueue, ReceivedMessage
from minimq.receiving.in_hand import Call, InHand
from minimq.receiving.process_queue import Limits
from minimq.receiving.received import ReceivedBatch, StoredBatch
from minimq.receiving.retry_sender import Failed
from minimq.receiving.returns import Returns
from minimq_common.batch_builder import BatchBuilder
from support.waiting import wait_until

KEPT, LOST = (MessageQueue("orders", "broker-a", number) for number in range(2))


def take(in_hand: InHand, queue: MessageQueue, count: int) -> Call:
    builder = BatchBuilder(1 << 20)
    builder.add([Message(queue.topic, b"x")] * count)
    taken = ReceivedBatch(queue, StoredBatch(0, 0, 0, count, builder.build(1, 1, 0))).messages(0)
    in_hand.start(queue, 0)
    in_hand.blocked()
    [call] = in_hand.take(taken, [taken], lambda _: None)
    return call


@pytest.mark.parametrize("lost", ["away", "and granted anew"])
def test_messages_of_a_queue_that_was_lost_are_left_to_its_owner(lost: str) -> None:
    in_hand = InHand(Limits(100, 1000, 100), lambda: None, one_at_a_time=False)
    gone, mine = take(in_hand, LOST, 3), take(in_hand, KEPT, 4)
    sent: list[Failed] = []
    done: dict[Call, list[ReceivedMessage]] = {}

    def send(failed: Sequence[Failed]) -> list[bool]:
        sent.extend(failed)
        return [number > 0 for number in range(len(failed))]  # the first one is not taken

    returns = Returns(send, in_hand.is_current, done.__setitem__, "returns")
    in_hand.drop([LOST])
    if lost == "and granted anew":
        in_hand.start(LOST, 0)
    returns.put(gone, None)
    returns.put(mine, 2)
    returns.start()
    wait_until(lambda: len(done) == 2)
    returns.close(5.0)
    assert sent == [Failed(message, 2) for message in mine.messages]
    assert done == {gone: [], mine: [mine.messages[0]]}
