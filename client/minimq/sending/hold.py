"""All that the send path knows of features that have brokers hold batches back, such as delays. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Protocol, Self

from minimq_common.errors import Unsupported
from minimq_common.model import Message, MessageQueue


class Held(NamedTuple):
    """The part of a receipt for a batch that is not in its queue yet."""

    #: When it is due, in ms since 1970.
    due_ms: int
    #: The text with which the message can be taken back; None if it cannot.
    handle: str | None = None


class Hold(Protocol):
    """Why a broker holds a batch back. Immutable."""

    @property
    def bucket(self) -> Hashable:
        """Messages share a batch only if their buckets are equal."""

    def merged(self, other: Self) -> Self:
        """Return the hold of a batch with messages of both."""

    def write(self, request: Any, now: float) -> None:
        """Set it in an `Append`; `now` is on the monotonic clock."""

    def held(self, queue: MessageQueue, result: Any) -> Held | None:
        """Return what the receipt says, by the `AppendResult` of the broker."""


#: Returns the hold of a message, None for most; the numbers are the time on the monotonic clock, and since 1970.
HoldOf = Callable[[Message, float, float], Hold | None]


def unsupported_hold(message: Message, _monotonic_s: float, _time_s: float) -> Hold | None:
    """Reject messages that a broker would have to hold back."""
    if message.deliver_after_s is not None or message.deliver_at is not None or message.recallable:
        raise Unsupported("this client was built without delayed messages: leave out the due time")
    return None
