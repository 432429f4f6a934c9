"""The receipts of messages of work queues."""

from __future__ import annotations

from typing import Any

import pytest

from minimq.consuming.received import ReceivedBatch
from minimq.features.work_queues.work_queue_message import ReceiptHandle, WorkQueueMessage, receipts_of
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue

QUEUE = MessageQueue("t", "broker-a", 0)


def test_neighbors_have_one_receipt() -> None:
    class Batch:
        def __init__(self, base_offset: int) -> None:
            self.queue, self.base_offset = QUEUE, base_offset

    def message(batch: ReceivedBatch, index: int, epoch: int = 1, group: str = "g") -> WorkQueueMessage:
        return WorkQueueMessage(batch, index, b"", None, 1, epoch, group)

    one: Any = Batch(10)
    two: Any = Batch(50)
    handle = str(ReceiptHandle("g", QUEUE, 99, 2))
    messages = [message(one, at) for at in range(5)] + [message(one, 7), message(two, 8), message(one, 9, epoch=2)]
    assert receipts_of([*messages, handle], "g") == {
        (QUEUE, 1): [(10, 15), (17, 18), (58, 59)],
        (QUEUE, 2): [(99, 100), (19, 20)],
    }
    assert receipts_of(messages[0], "g") == {(QUEUE, 1): [(10, 11)]}
    for wrong in ([*messages, message(two, 9, group="other")], [*messages, 7], "no handle", b"bytes"):
        with pytest.raises(InvalidArgument):
            receipts_of(wrong, "g")  # type: ignore[arg-type]
