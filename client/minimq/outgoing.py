"""What is on its way out of a producer: sealed batches, and the open lanes in which single messages gather."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from minimq.receipt import BatchReceipt, SendReceipt
from minimq_common.errors import MiniMQError
from minimq_common.model import Message, MessageQueue

#: Called once with the receipt of a batch, or with the reason why there is none.
Completion = Callable[[BatchReceipt | None, MiniMQError | None], None]


class OutgoingBatch:
    """A batch that is to be sent, and what has been tried. Belongs to whoever took it from the dispatcher's queue."""

    __slots__ = ("complete", "count", "data", "deadline", "last_broker", "queue", "sequence", "size", "topic", "tries")

    def __init__(
        self,
        topic: str,
        queue: MessageQueue | None,
        data: bytes,
        count: int,
        size: int,
        sequence: int,
        complete: Completion,
    ) -> None:
        self.topic = topic
        #: Where it must go; None when any queue will do.
        self.queue = queue
        self.data = data
        self.count = count
        #: Bytes that it holds of the producer's buffer.
        self.size = size
        self.sequence = sequence
        self.complete = complete
        #: Set when it is first tried.
        self.deadline: float | None = None
        self.tries: list[str] = []
        self.last_broker: str | None = None


class PendingMessage(NamedTuple):
    """A single message that waits in a lane."""

    message: Message
    future: Future[SendReceipt]
    born_ms: int
    size: int


class Lane:
    """Messages for one topic, or for one queue of it, that will leave together."""

    __slots__ = ("pending", "queue", "topic")

    def __init__(self, topic: str, queue: MessageQueue | None) -> None:
        self.topic = topic
        self.queue = queue
        self.pending: list[PendingMessage] = []

    @property
    def size(self) -> int:
        """Bytes that its messages hold of the producer's buffer."""
        return sum([item.size for item in self.pending])

    def take(self, max_messages: int, max_bytes: int) -> Lane:
        """Remove the first messages, up to the size of a batch, and return them as a lane of their own."""
        number = size = 0
        for item in self.pending[:max_messages]:
            size += item.size
            if size > max_bytes and number:
                break
            number += 1
        taken = Lane(self.topic, self.queue)
        taken.pending, self.pending = self.pending[:number], self.pending[number:]
        return taken

    def complete(self, receipt: BatchReceipt | None, error: MiniMQError | None) -> None:
        """Complete the futures of all messages."""
        for index, item in enumerate(self.pending):
            if not item.future.set_running_or_notify_cancel():
                continue
            if receipt is not None:
                item.future.set_result(SendReceipt(receipt, index))
            else:
                item.future.set_exception(error)


def describe_try(number: int, where: str, began: float, error: MiniMQError) -> str:
    """Return the line about one try for the error of a send."""
    return f"try {number}: {where}, failed after {time.monotonic() - began:.3f} s: {error.message}"
