"""Going on after the offset that comes next is not stored: retention was faster than the reader, or the log was cut."""

from __future__ import annotations

from dataclasses import dataclass

from minimq_common.model import MessageQueue
from minimq_common.words import count_of


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """A consumer goes on at another offset, because the one that it was to read next is not stored.

    Attributes:
        queue: where.
        wanted: the offset that it was to read next.
        offset: where it goes on.
        min_offset: first offset that was stored then.
        max_offset: the offset that the next message was to get then; with a new master when its term began.
        sought: the consumer was sent to `wanted` by a seek, and has read nothing since.
    """

    queue: MessageQueue
    wanted: int
    offset: int
    min_offset: int
    max_offset: int
    sought: bool = False

    @property
    def deleted(self) -> int:
        """Number of messages that were deleted before this consumer could read them."""
        return max(self.min_offset - self.wanted, 0)

    @property
    def missed(self) -> int:
        """Number of messages that this consumer passes over: the deleted ones, and with "latest" all others."""
        return max(self.offset - self.wanted, 0)

    @property
    def is_back(self) -> bool:
        """True if the queue ends before what was to be read.

        Its log was cut, and goes on with other messages; or a seek went beyond its end.
        """
        return self.offset < self.wanted

    def __str__(self) -> str:
        """Say what happened in a sentence."""
        where = f"offset {self.wanted} of queue {self.queue}"
        if self.is_back and self.sought:
            return f"{where} was sought, but the queue ends at {self.max_offset}: going on at {self.offset}"
        if self.is_back:
            return f"{where} was taken back, since the queue lost its last messages: going on at {self.offset}"
        rest = self.missed - self.deleted
        others = f" and {rest} passed over" if rest else ""
        gone = f"{count_of(self.deleted, 'message')} {'is' if self.deleted == 1 else 'are'} gone"
        return f"{where} is not stored any more: {gone}{others}, going on at {self.offset}"
