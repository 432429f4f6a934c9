"""What is on its way out of a producer: sealed batches, and the open lanes in which single messages gather."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from minimq.sending.receipt import BatchReceipt, SendReceipt
from minimq_common.errors import MiniMQError
from minimq_common.model import Message, MessageQueue

#: Called once with the receipt of a batch, or with the reason why there is none.
Completion = Callable[[BatchReceipt | None, MiniMQError | None], None]


class OutgoingBatch:
    """A batch that is to be sent, and what has been tried. Belongs to whoever took it from the dispatcher's queue."""

    __slots__ = (
        "complete",
        "count",
        "data",
        "deadline",
        "handed_in",
        "last_broker",
        "queue",
        "sequence",
        "size",
        "topic",
        "tries",
    )

    def __init__(  # noqa: PLR0913 - each is a fact of its own
        self,
        topic: str,
        queue: MessageQueue | None,
        *,
        data: bytes,
        count: int,
        size: int,
        sequence: int,
        handed_in: float,
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
        #: When its oldest message was, by the monotonic clock.
        self.handed_in = handed_in
        self.complete = complete
        #: Set when it is first tried.
        self.deadline: float | None = None
        self.tries: list[str] = []
        self.last_broker: str | None = None


class Outcome(Protocol):
    """Where the outcome of a single message goes; a `concurrent.futures.Future` is one."""

    def set_running_or_notify_cancel(self) -> bool:
        """Return whether somebody still waits; called once, before one of the others."""

    def set_result(self, result: SendReceipt, /) -> None:
        """Take the receipt."""

    def set_exception(self, exception: MiniMQError | None, /) -> None:
        """Take the reason why there is none."""


class PendingMessage(NamedTuple):
    """A single message that waits in a lane. Nobody hears of its outcome when it has none."""

    message: Message
    outcome: Outcome | None
    born_ms: int
    handed_in: float
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

    def sealed(self, data: bytes, sequence: int) -> OutgoingBatch:
        """Return its messages as the batch that was made of them."""
        return OutgoingBatch(
            self.topic,
            self.queue,
            data=data,
            count=len(self.pending),
            size=self.size,
            sequence=sequence,
            handed_in=self.pending[0].handed_in,
            complete=self.complete,
        )

    def complete(self, receipt: BatchReceipt | None, error: MiniMQError | None) -> None:
        """Tell the outcome of all messages."""
        for index, item in enumerate(self.pending):
            outcome = item.outcome
            if outcome is None or not outcome.set_running_or_notify_cancel():
                continue
            if receipt is not None:
                outcome.set_result(SendReceipt(receipt, index))
            else:
                outcome.set_exception(error)
