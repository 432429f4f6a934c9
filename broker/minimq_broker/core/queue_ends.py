"""Queues by the ids of their topics, where they end, and the effect of a batch in one."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from minimq_broker.core.held.delays import DueKey
from minimq_broker.core.producers import Place


class QueueKey(NamedTuple):
    """A queue by the id of its topic."""

    topic_id: int
    queue_id: int

    def __str__(self) -> str:
        return f"{self.queue_id} of the topic with id {self.topic_id}"


class QueueEnd(msgspec.Struct, frozen=True, array_like=True):
    """Where a queue ends: the next offset, and the latest store time."""

    offset: int = 0
    stored_ms: int = 0


class BatchApplied(NamedTuple):
    """The effect of an entry with a batch in a queue; producer id and numbers as in the header of the batch.

    A released one has none of these: its number was its own while it was staged, or delayed; it has a key then.
    """

    queue: QueueKey
    end: QueueEnd
    place: Place
    producer_id: int = 0
    sequence: int = 0
    settled_before: int = 0
    released: DueKey | None = None
