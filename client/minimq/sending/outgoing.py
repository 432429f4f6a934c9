"""What is on its way out of a producer: sealed batches, and the open lanes in which single messages gather."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from minimq.sending.decisions import Transaction
from minimq.sending.receipt import BatchReceipt, SendReceipt
from minimq_common.errors import MiniMQError, SendFailed
from minimq_common.model import Message, MessageQueue

log = logging.getLogger(__name__)

#: Called once with the receipt of a batch, or with the reason why there is none; with neither when it was never sent.
Completion = Callable[[BatchReceipt | None, MiniMQError | None], None]


class Records(Protocol):
    """What can be made one batch: a `BatchBuilder`, or the columns of a connector.

    Attributes:
        size: bytes that it takes in memory, about.
    """

    @property
    def size(self) -> int: ...  # noqa: D102 - as above

    def __len__(self) -> int:
        """Return the number of records, at least 1."""

    def build(self, born_ms: int | Sequence[int], producer_id: int, sequence: int, unsettled: int = 0) -> bytes:
        """Return the batch, see `BatchBuilder.build`."""


#: Where batches get through or not: a broker that they are bound to, or a topic.
Direction = tuple[str, bool]


class InBuffer(NamedTuple):
    """What something takes of the producer's buffer.

    Attributes:
        tickets: of its reservations.
        size: bytes of all of them.
        counts: how many messages of each reservation; all unless given.
    """

    tickets: Sequence[int]
    size: int
    counts: Sequence[int] | None = None


class OutgoingBatch:
    """A batch that is to be sent, and what has been tried. Belongs to whoever took it from the waiting lines."""

    __slots__ = (
        "avoid",
        "complete",
        "count",
        "data",
        "deadline",
        "done",
        "handed_in",
        "in_buffer",
        "lookups",
        "queue",
        "sequence",
        "topic",
        "transaction",
        "tries",
    )

    def __init__(  # noqa: PLR0913 - each is a fact of its own
        self,
        topic: str,
        queue: MessageQueue | None,
        *,
        data: bytes,
        count: int,
        in_buffer: InBuffer,
        sequence: int,
        handed_in: float,
        complete: Completion,
        transaction: Transaction | None = None,
    ) -> None:
        self.topic = topic
        #: Where it must go; None when any queue will do.
        self.queue = queue
        self.data = data
        self.count = count
        self.in_buffer = in_buffer
        self.sequence = sequence
        #: When its oldest message was, by the monotonic clock.
        self.handed_in = handed_in
        self.complete = complete
        #: Set when it is only to be staged.
        self.transaction = transaction
        #: Set when it is first taken out of its line.
        self.deadline: float | None = None
        self.tries: list[str] = []
        #: Name of the broker at which it was tried last.
        self.avoid: str | None = None
        #: How often its topic was not known when it was its turn.
        self.lookups = 0
        #: Whether its outcome has been told.
        self.done = False

    @property
    def direction(self) -> Direction:
        """Where it gets through, or does not, together with others."""
        return (self.queue.broker_name, True) if self.queue is not None else (self.topic, False)

    def note_try(self, where: str, took_s: float, error: MiniMQError) -> None:
        """Remember a try that failed, for whoever is told in the end."""
        self.tries.append(f"try {len(self.tries) + 1}: {where}, failed after {took_s:.3f} s: {error.message}")

    def final(self, error: MiniMQError) -> MiniMQError:
        """Return what the sender is told of the last error: itself when there was but one try, and no use in others."""
        if len(self.tries) <= 1 and not error.retriable:
            return error
        return SendFailed(
            f"{messages_were(self.count, f'for topic {self.topic!r}')} not acknowledged: {error.message}",
            tuple(self.tries),
        )


def messages_were(count: int, which: str = "") -> str:
    """Return "1 message was" or "2 messages were", with what is said of them in between."""
    noun, verb = ("message", "was") if count == 1 else ("messages", "were")
    return " ".join(filter(None, (str(count), noun, which, verb)))


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
    ticket: int


class Lane:
    """Messages for one topic, or for one queue of it, that will leave together."""

    __slots__ = ("pending", "queue", "topic")

    def __init__(self, topic: str, queue: MessageQueue | None) -> None:
        self.topic = topic
        self.queue = queue
        self.pending: deque[PendingMessage] = deque()

    def take(self, max_messages: int, max_bytes: int) -> Lane:
        """Remove the first messages, up to the size of a batch, and return them as a lane of their own."""
        taken = Lane(self.topic, self.queue)
        size = 0
        while self.pending and len(taken.pending) < max_messages:
            size += self.pending[0].size
            if size > max_bytes and taken.pending:
                break
            taken.pending.append(self.pending.popleft())
        return taken

    def sealed(self, data: bytes, sequence: int) -> OutgoingBatch:
        """Return its messages as the batch that was made of them."""
        pending = self.pending
        return OutgoingBatch(
            self.topic,
            self.queue,
            data=data,
            count=len(pending),
            in_buffer=InBuffer([item.ticket for item in pending], sum([item.size for item in pending])),
            sequence=sequence,
            handed_in=pending[0].handed_in,
            complete=self.complete,
        )

    def unsealed(self) -> OutgoingBatch:
        """Return its messages as a batch that will never be sent, to be failed."""
        return self.sealed(b"", -1)

    def complete(self, receipt: BatchReceipt | None, error: MiniMQError | None) -> None:
        """Tell the outcome of all messages."""
        for index, item in enumerate(self.pending):
            outcome = item.outcome
            if outcome is None:
                continue
            try:
                _tell(outcome, SendReceipt(receipt, index) if receipt is not None else error)
            except BaseException:  # even of a callback that ends its thread: the others must hear of theirs
                log.exception("producer: an outcome was not taken in topic=%s", self.topic)


def _tell(outcome: Outcome, what: SendReceipt | MiniMQError | None) -> None:
    if not outcome.set_running_or_notify_cancel():
        return
    if isinstance(what, SendReceipt):
        outcome.set_result(what)
    else:
        outcome.set_exception(what)
