"""The values of a `QueueReader`: options, frames, decisions and commits: pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from minimq.consuming.received import EncodedRecords
from minimq_common.errors import DamagedMessages, MinimqError
from minimq_common.model import MessageQueue, TopicId
from minimq_common.text_units import count_of


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """A consumer continues at another offset, because its next message is not stored.

    Attributes:
        queue: the queue.
        wanted: the offset of its next message.
        offset: the offset at which it continues.
        min_offset: the first stored offset at that time.
        max_offset: the end of the queue at that time; after a failover, its end when the new term began.
    """

    queue: MessageQueue
    wanted: int
    offset: int
    min_offset: int
    max_offset: int

    @property
    def deleted(self) -> int:
        """Number of messages that were deleted before this consumer could read them."""
        return max(self.min_offset - self.wanted, 0)

    @property
    def missed(self) -> int:
        """Number of messages that this consumer skips: the deleted ones, and with "latest" all others."""
        return max(self.offset - self.wanted, 0)

    @property
    def is_back(self) -> bool:
        """True if the queue ends before `wanted`: its log was cut and gets other messages, or a seek went too far."""
        return self.offset < self.wanted

    def __str__(self) -> str:
        """Describe the reset in one sentence."""
        where = f"offset {self.wanted} of queue {self.queue}"
        if self.is_back:
            return f"{where} does not exist, the queue ends at {self.max_offset}: continuing at {self.offset}"
        rest = self.missed - self.deleted
        others = f" and {rest} skipped" if rest else ""
        gone = f"{count_of(self.deleted, 'message')} {'was' if self.deleted == 1 else 'were'} deleted"
        return f"{where} is no longer stored: {gone}{others}, continuing at {self.offset}"


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """Options of a `QueueReader`; `readers` divide `max_messages` and `max_bytes` equally."""

    max_messages: int
    max_bytes: int
    offset_reset: Literal["earliest", "latest", "error"] = "error"
    #: Returns the number of readers, at least 1.
    readers: Callable[[], int] = lambda: 1

    @property
    def share_messages(self) -> int:
        """Maximum number of buffered messages of one reader."""
        return max(self.max_messages // self.readers(), 1)

    @property
    def share_bytes(self) -> int:
        """Maximum bytes that one reader buffers and has handed over; at least one batch is always allowed."""
        return max(self.max_bytes // self.readers(), 1)


class Frame(NamedTuple):
    batches: Sequence[EncodedRecords] = ()
    #: Offset at which the pull continues, or may continue after damage; 0: after the last batch.
    next_offset: int = 0
    min_offset: int = 0
    max_offset: int = 0
    #: Latest term of the broker's log; 0 if unknown.
    term: int = 0
    is_last: bool = False
    from_slave: bool = False
    failure: MinimqError | None = None

    def placed(self, error: MinimqError, queue: MessageQueue, offset: int) -> MinimqError:
        """Return the error; if it is about damaged messages, with their queue and offset."""
        return error.at(queue, offset, self.next_offset or None) if isinstance(error, DamagedMessages) else error


class Pull(NamedTuple):
    number: int
    offset: int
    max_messages: int
    #: The last batch may exceed it.
    max_bytes: int
    #: Seconds for which the broker holds the pull while there is nothing to read.
    wait_s: float = 0.0
    #: Term of the log in which the offset is known to be valid; 0 if unknown.
    term: int = 0
    #: Epoch of the lease; 0 without one.
    epoch: int = 0
    #: The topic must be this one, not a later one of the same name.
    topic_id: TopicId | None = None


class Cancel(NamedTuple):
    number: int


class LeaseOver(NamedTuple):
    """Report that the broker no longer knows the lease or, if there is none, the topic."""

    epoch: int
    error: MinimqError


Decision = Pull | Cancel | LeaseOver | OffsetReset


class Commit(NamedTuple):
    queue: MessageQueue
    offset: int
    epoch: int = 0
    topic_id: int = 0
    #: The reader has jumped: the committed offset may go back.
    sought: bool = False
    #: Address of the broker that granted the lease; empty without one.
    address: str = ""
    term: int = 0


class QueueEvent(Enum):
    GAINED = "gained"
    LOST = "lost"


#: A change of the queues of a consumer, about which the user is called.
Change = tuple[QueueEvent, MessageQueue] | OffsetReset
