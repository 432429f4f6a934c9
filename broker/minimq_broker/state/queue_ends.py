"""Keys and ends of queues, and the effect of an appended batch."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from minimq_broker.state.producers import BatchLocation

#: A log position beyond all others: no entries are needed.
NOTHING_NEEDED = 1 << 63


class QueueKey(NamedTuple):
    """A queue, identified by topic id: a topic that is created again has other keys."""

    topic_id: int
    queue_id: int

    def __str__(self) -> str:
        return f"{self.queue_id} of the topic with id {self.topic_id}"


class QueueEnd(msgspec.Struct, frozen=True, array_like=True):
    """The end of a queue: the next offset, and the store time of the last batch."""

    offset: int = 0
    stored_ms: int = 0


#: The end of a queue to which nothing was ever written.
NO_MESSAGES = QueueEnd()


class HeldKey(NamedTuple):
    """Identifies a held batch."""

    #: When it is due, in ms since 1970; 0 if a decision releases it.
    until_ms: int
    #: Log position of its entry.
    position: int


class BatchHeld(NamedTuple):
    """The effect of a batch that a feature holds: it is stored, and not in a queue yet.

    The kernel decodes the entry without the feature, which alone understands `note`.
    """

    #: `Feature.tag`.
    tag: int
    note: bytes
    #: The queue of the batch, once it is released. Until then `base_offset` is the log position.
    place: BatchLocation
    messages: int
    #: Producer id and numbers of the batch header; 0 if the feature detects duplicates itself.
    producer_id: int = 0
    sequence: int = 0
    settled_before: int = 0
    #: Tag of the user who sent it.
    user: int = 0

    @property
    def key(self) -> HeldKey:
        """Identifies it."""
        return HeldKey(self.place.held_until_ms, self.place.base_offset)


class BatchApplied(NamedTuple):
    """The effect of a batch that was appended to a queue; producer id and numbers are those of the batch header."""

    queue: QueueKey
    end: QueueEnd
    place: BatchLocation
    producer_id: int = 0
    sequence: int = 0
    settled_before: int = 0
    #: Tag of the user who sent it.
    user: int = 0
    #: `Feature.tag` and key of a batch that was held.
    released_by: int = 0
    released: HeldKey | None = None
