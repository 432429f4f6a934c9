"""Rewritings of segments for tests: what is kept is said by offsets."""

from __future__ import annotations

from collections.abc import Callable

from minimq_broker.commit.store import Store
from minimq_broker.log.entry import EntryHeader
from minimq_broker.log.rewriting import Rewriting
from minimq_broker.state.state import QueueKey

Keeps = Callable[[QueueKey, int], bool]


def begin_rewriting(store: Store, first: int, count: int, keeps: Keeps) -> Rewriting:
    """Begin to rewrite some segments, from the one with an index on; batches stay by their queues and first offsets."""

    def choice(position: int, header: EntryHeader, entry: memoryview) -> memoryview | None:
        return entry if keeps(header.queue, header.base_offset) else None

    segments = store.log.segments
    return Rewriting(store.log, segments[first : first + count], segments[first + count].start, choice, store.pins())


def rewrite(store: Store, first: int, count: int, keeps: Keeps, *, step: int = 2) -> Rewriting:
    """Rewrite some segments as `begin_rewriting` does, so many entries at a time."""
    rewriting = begin_rewriting(store, first, count, keeps)
    try:
        while rewriting.step(1 << 30, step):
            pass
        assert rewriting.put_in_place()
    finally:
        rewriting.close()
    return rewriting
