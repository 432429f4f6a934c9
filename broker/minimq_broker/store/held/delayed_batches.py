"""Delayed batches as they are listed."""

from __future__ import annotations

from dataclasses import dataclass

from minimq_broker.core.held.delays import NO_KEY, DueKey


@dataclass(frozen=True, slots=True)
class DelayedBatch:
    """A batch that waits."""

    key: DueKey
    queue_id: int
    count: int
    #: When it was stored, in ms since 1970.
    stored_ms: int
    #: It may be taken back.
    is_recallable: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class DelayedRange:
    """Delayed batches of a topic, by when they are due."""

    #: Due from this time on, in ms since 1970.
    from_ms: int = 0
    #: Due before this time; None: at any time.
    before_ms: int | None = None
    #: Only those behind this key.
    after: DueKey = NO_KEY
    #: So many at most.
    max_batches: int = 1_000
    max_bytes: int = 1 << 20
    recalled: bool = False


@dataclass(frozen=True, slots=True)
class DelayedPage:
    """Some delayed batches, in the order in which they are due."""

    batches: list[DelayedBatch]
    #: Where the next page goes on; None when there are no more.
    next: DueKey | None = None
