"""The result of a search: the messages, and what it could not look at."""

from __future__ import annotations

from dataclasses import dataclass

from minimq.receiving.received import ReceivedMessage
from minimq_common.model import AwayBroker, MessageQueue


@dataclass(frozen=True, slots=True)
class UnreadOffsets:
    """Offsets of a queue at which nothing could be looked for: any message there may be one that was wanted.

    Attributes:
        queue: which queue.
        offset: the first of them.
        end_offset: the one behind the last.
        reason: why: a batch is damaged, or its broker does not answer.
    """

    queue: MessageQueue
    offset: int
    end_offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """The messages that a search has found.

    Attributes:
        messages: in the order of their store times.
        unread: offsets at which nothing could be looked for.
        away: brokers that are away, with their queues of the topic: nothing was looked for there.
        from_slaves: brokers of which a slave has answered, which may not have their latest messages.
        searched: the number of offsets that were looked at.
        is_cut: the search has ended at `max_messages`; there may be more.
    """

    messages: tuple[ReceivedMessage, ...]
    unread: tuple[UnreadOffsets, ...] = ()
    away: tuple[AwayBroker, ...] = ()
    from_slaves: tuple[str, ...] = ()
    searched: int = 0
    is_cut: bool = False

    @property
    def is_complete(self) -> bool:
        """True if nothing that is stored was left out."""
        return not (self.unread or self.away or self.from_slaves or self.is_cut)
