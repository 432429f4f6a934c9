"""Delayed batches as they are listed."""

from __future__ import annotations

from dataclasses import dataclass

from minimq_broker.core.delays import NO_KEY, DueKey


@dataclass(frozen=True, slots=True)
class DelayedBatch:
    """A batch that waits.

    Attributes:
        key: when it is due, and by what it is recalled.
        queue_id: the queue of its topic that it is for.
        count: number of its messages.
        stored_ms: when it was stored, in ms since 1970.
        is_recallable: it may be taken back.
        data: the batch.
    """

    key: DueKey
    queue_id: int
    count: int
    stored_ms: int
    is_recallable: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class DelayedRange:
    """Delayed batches of a topic, by when they are due.

    Attributes:
        from_ms: due from this time on, in ms since 1970.
        before_ms: due before this time; None: at any time.
        after: only those behind this key.
        max_batches: so many at most.
        max_bytes: the one that reaches it is the last.
        recalled: those that were recalled, as far as they are still kept, instead of those that wait.
    """

    from_ms: int = 0
    before_ms: int | None = None
    after: DueKey = NO_KEY
    max_batches: int = 1_000
    max_bytes: int = 1 << 20
    recalled: bool = False


@dataclass(frozen=True, slots=True)
class DelayedPage:
    """Some delayed batches, in the order in which they are due.

    Attributes:
        batches: they.
        next: where the next page goes on; None when there are no more.
    """

    batches: list[DelayedBatch]
    next: DueKey | None = None
