"""Messages without an outcome, and the batches in which they are sent."""

from __future__ import annotations

import logging
import math
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate, islice, takewhile
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from minimq.sending.hold import Hold
from minimq.sending.receipt import BatchReceipt, SendReceipt
from minimq.sending.selectors import Selector
from minimq_common.batch.builder import BatchBuilder
from minimq_common.batch.compression import Compression
from minimq_common.errors import (
    InternalError,
    MinimqError,
    NotEnoughReplicas,
    NotMaster,
    RejectedByProxy,
    SendFailed,
    StaleSequence,
)
from minimq_common.model import Message, MessageQueue

log = logging.getLogger(__name__)

#: Error answers of a broker after which a batch may nevertheless be stored.
IN_DOUBT = (NotMaster, NotEnoughReplicas, InternalError, RejectedByProxy)

#: Memory of one waiting message besides its content: its entries in the buffer, and its future.
PENDING_BYTES = 512

T = TypeVar("T")

#: A call of user code after an outcome. It must not run on the event loop.
UserCall = Callable[[], object]

#: Called once with the receipt of a batch, or with the error. Returns as `Outcome`.
Completion = Callable[[BatchReceipt | MinimqError], UserCall | None]


class Records(Protocol):
    """Records that can be encoded as one batch, such as a `BatchBuilder`; their size in memory is approximate."""

    @property
    def size(self) -> int: ...

    def __len__(self) -> int:
        """Return the number of records, at least 1."""

    def build(self, born_ms: int | Sequence[int], producer_id: int, sequence: int, unsettled: int = 0) -> bytes:
        """Return the batch, see `BatchBuilder.build`."""


class Target(NamedTuple):
    """A queue, and the address of its broker."""

    queue: MessageQueue
    address: str


class AttemptStream(Protocol):
    """The stream of an attempt."""

    #: Why there is no answer, if its broker has reported that: the end of a sentence.
    delay: str

    @property
    def moved_at(self) -> float:
        """When the broker acknowledged a part of a large batch last."""

    def fail(self, reason: MinimqError, /) -> None:
        """Close it, and fail all attempts on it."""


class BatchNumber(NamedTuple):
    """Identifies a batch of its producer, so that brokers detect duplicates."""

    #: Counts the batches of a producer.
    sequence: int
    #: How many earlier numbers may still be resent. Brokers forget older ones.
    unsettled: int


#: Called once with the receipt of a message, or the reply to a request, or with the error: such as a `ReceiptFuture`,
#: or `SimpleQueue.put`. Returns user code that is still to be called.
Outcome = Callable[[T | MinimqError], UserCall | None]


class PendingMessage(msgspec.Struct, eq=False):
    """A single, validated message without an outcome."""

    message: Message
    queue: MessageQueue | None
    size: int
    #: Receives the receipt, or the error; None if the sender wants neither.
    outcome: Outcome[SendReceipt] | None
    #: Why the broker holds it back; None for most.
    hold: Hold | None = None
    #: When the producer accepted it, in ms since 1970.
    born_ms: int = 0
    #: The same, in seconds on the monotonic clock.
    handed_in: float = 0.0
    #: Bytes that it uses in the buffer.
    memory: int = 0
    #: Chooses the queue at the end of a transaction; None if `queue` is final.
    selector: Selector | None = None
    #: Whether `queue` was chosen by key, so that another one takes its place if it is removed.
    may_move: bool = False


class PendingBatch(msgspec.Struct, eq=False):
    """Messages for one destination that are sent together; open until it has a number. Owned by the event loop."""

    topic: str
    queue: MessageQueue | None
    messages: deque[PendingMessage] = msgspec.field(default_factory=deque)
    #: See `PendingMessage.may_move`.
    may_move: bool = False
    message_group: str | None = None
    #: That of the holds of all its messages.
    bucket: Hashable = None
    #: When the producer accepted its oldest message, in seconds on the monotonic clock.
    handed_in: float = 0.0
    number: BatchNumber | None = None
    hold: Hold | None = None
    count: int = 0
    #: Bytes that it uses in the buffer.
    memory: int = 0
    data: bytes | None = None
    # Attempts. Times are seconds on the monotonic clock.
    deadline: float = math.inf
    failed_attempts: list[str] = []
    #: True after an attempt without an answer, or with one of `IN_DOUBT`.
    may_be_stored: bool = False
    attempts: int = 0
    target: Target | None = None
    began: float = math.inf
    timeout_s: float = math.inf
    expires: float = math.inf
    stream: AttemptStream | None = None
    part: int = 0
    done: bool = False

    @property
    def avoid(self) -> str | None:
        """Name of the broker of the last attempt."""
        return self.target.queue.broker_name if self.target is not None else None

    def take(self, max_messages: int, max_bytes: int) -> PendingBatch:
        """Remove the first messages, up to these limits but at least one, and return them as a separate batch."""
        sizes = accumulate([item.size for item in islice(self.messages, max_messages)])
        return self._part(max(bisect_right([*sizes], max_bytes), 1))  # a message over `max_bytes` is sent alone

    def take_older(self, than: float) -> PendingBatch:
        """Remove the messages that were accepted up to a time, and return them as a separate batch."""
        return self._part(sum(1 for _ in takewhile(lambda item: item.handed_in <= than, self.messages)))

    def _part(self, count: int) -> PendingBatch:
        messages = deque([self.messages.popleft() for _ in range(count)])
        taken = PendingBatch(
            self.topic, self.queue, messages, self.may_move, self.message_group, self.bucket, self.handed_in
        )
        taken.count = count
        if self.messages:
            self.handed_in = self.messages[0].handed_in
        return taken

    def note_attempt(self, took_s: float, error: MinimqError) -> None:
        assert self.target is not None
        queue, address = self.target
        number = len(self.failed_attempts) + 1
        text = f"attempt {number}: {queue} at {address}, failed after {took_s:.3f} s: {error.message}"
        self.failed_attempts.append(text)
        self.may_be_stored |= (error.was_sent and not error.answered) or isinstance(error, IN_DOUBT)

    def final(self, error: MinimqError) -> MinimqError:
        """Return the error of the batch after its last try: `error` itself if it is final and nothing may be stored."""
        if not error.retriable and not self.may_be_stored:
            return error
        were = messages_were(self.count, f"for topic {self.topic!r}")
        outcome = "may be stored" if self.may_be_stored else "not stored"
        return SendFailed(
            f"{were} not acknowledged, and {outcome}: {error.message}",
            tuple(self.failed_attempts),
            may_be_stored=self.count * self.may_be_stored,
            not_stored=self.count * (not self.may_be_stored),
        )

    def complete(self, outcome: BatchReceipt | MinimqError) -> list[UserCall]:
        """Deliver the outcome to all senders; return user code that is still to be called."""
        calls = []
        for index, item in enumerate(self.messages):
            report = item.outcome
            if report is None:
                continue
            try:
                call = report(SendReceipt(outcome, index) if isinstance(outcome, BatchReceipt) else outcome)
            except Exception:  # user code changed the future: the others must still get their outcomes
                log.exception("producer: delivering an outcome failed topic=%s", self.topic)
            else:
                if call is not None:
                    calls.append(call)
        return calls


class PendingRecords(PendingBatch, kw_only=True):
    """Records for one destination, numbered and encoded by their sender."""

    completion: Completion
    #: Whether the event loop has it.
    is_taken: bool = False

    def __post_init__(self) -> None:
        self.bucket = None if self.hold is None else self.hold.bucket

    def complete(self, outcome: BatchReceipt | MinimqError) -> list[UserCall]:
        call = self.completion(outcome)
        return [] if call is None else [call]


def messages_were(count: int, which: str = "") -> str:
    """Return "1 message was" or "2 messages were", with a description in between."""
    noun, verb = ("message", "was") if count == 1 else ("messages", "were")
    return " ".join(filter(None, (str(count), noun, which, verb)))


def number_taken(broker_name: str) -> StaleSequence:
    """Return the error of a first attempt for which a broker reports that it has the batch already."""
    return StaleSequence(
        f"broker {broker_name} has another batch with this producer's number, so it did not store this one: a copy of "
        "this process (a fork, a restored snapshot) or another client of the same user sends with its id; create "
        "another producer, and send again"
    )


def new_producer_id() -> int:
    """Return a random 64-bit id; never 0, which means a producer without batch numbers."""
    return random.getrandbits(64) or 1


def encode_batch(
    max_body_bytes: int,
    compression: Compression | None,
    producer_id: int,
    items: Sequence[PendingMessage],
    message_group: str | None,
    number: BatchNumber,
) -> bytes:
    """Return the encoded batch. Can raise any exception if the user has changed a message meanwhile."""
    builder = BatchBuilder(max_body_bytes, compression, message_group)
    builder.add([item.message for item in items])
    return builder.build([item.born_ms for item in items], producer_id, *number)
