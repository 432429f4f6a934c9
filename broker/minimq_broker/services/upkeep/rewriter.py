"""The rewriting of old segments beside everything else: in slices, with pauses, and only where there is room."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from minimq_broker.core.state import State
from minimq_broker.core.upkeep.retention import Reason, SegmentRest, with_neighbors
from minimq_broker.services.counters import Counters
from minimq_broker.services.store_handle import StoreHandle
from minimq_broker.store.lmdb_file import DAMAGE
from minimq_broker.store.message_store import MessageStore
from minimq_broker.store.segment import Segment
from minimq_broker.store.upkeep.rewriting import Choice, Rewriting
from minimq_common.errors import StoreFull
from minimq_common.serving.logs import ALWAYS_WRITTEN

log = logging.getLogger(__name__)

#: What one slice reads, at most.
_SLICE_BYTES = 8 << 20
_SLICE_ENTRIES = 2_000
#: The shortest pause between two slices, in seconds. It is at least as long as the slice has taken.
_PAUSE_S = 0.005
#: Room that stays on the disk beside what a rewriting makes.
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class LogStretch:
    """Adjacent segments to be rewritten: by log positions, how much about stays, and why; None: only garbage goes."""

    start: int
    end: int
    kept_bytes: int
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class _StoreRewriting:
    """A rewriting, and what it is of: after a truncation or a copy that is another one."""

    store: MessageStore
    state: State
    rewriting: Rewriting


class Rewriter:
    """Rewrites segments, one stretch at a time. Lives on the event loop; what touches the disk runs on a thread."""

    def __init__(
        self,
        handle: StoreHandle,
        counters: Counters,
        lowest_needed: Callable[[], int],
        is_urged: Callable[[], bool],
    ) -> None:
        self._handle, self._counters = handle, counters
        self._lowest_needed = lowest_needed
        self._is_urged = is_urged

    async def rewrite(self, stretch: LogStretch, choose: Callable[[MessageStore], Choice] | None = None) -> bool:
        """Rewrite the segments of a stretch; return whether it was done."""
        work = await asyncio.to_thread(self._begin, stretch, choose)
        if work is None:
            return False
        try:
            has_more = True
            while has_more and not self._is_urged():
                began = time.monotonic()
                has_more = await asyncio.to_thread(self._step, work)
                await asyncio.sleep(max(_PAUSE_S, time.monotonic() - began))
            if has_more:
                return False
            return await asyncio.to_thread(self._finish, work, stretch, self._lowest_needed())
        finally:
            await asyncio.to_thread(work.rewriting.give_up)

    def _begin(self, stretch: LogStretch, choose: Callable[[MessageStore], Choice] | None) -> _StoreRewriting | None:
        with self._handle.reading() as store:
            segments = [each for each in store.log.segments[:-1] if stretch.start <= each.start < stretch.end]
            if not segments or any(segment.start in store.log.damage.reasons for segment in segments):
                return None
            free = store.disk.look()[0].free_bytes
            if free < stretch.kept_bytes + _SPARE_BYTES:
                raise StoreFull(
                    f"segments {stretch.start} to {stretch.end} cannot be rewritten: about {stretch.kept_bytes} bytes "
                    f"of them are needed, such as delayed messages, and {free} are left on the disk: free some"
                )
            choice = store.old.choice(stretch.reason) if choose is None else choose(store)
            salvages = stretch.reason is not None and any(each.start in self._handle.damage.known for each in segments)
            made = Rewriting(store.log, segments, stretch.end, choice, store.old.mark, salvages=salvages)
            return _StoreRewriting(store, store.state, made)

    def _step(self, work: _StoreRewriting) -> bool:
        with self._handle.reading() as store:
            if store is not work.store or store.state is not work.state:
                return False
            try:
                return work.rewriting.step(_SLICE_BYTES, _SLICE_ENTRIES)
            except DAMAGE as error:
                start = work.rewriting.at.start
                store.log.report_damage(start, str(error))
                raise

    def _finish(self, work: _StoreRewriting, stretch: LogStretch, needed_from: int) -> bool:
        with self._handle.reading() as store:
            if store is not work.store or store.state is not work.state:
                return False
            before = store.log.disk_bytes
            count = len(work.rewriting.former)
            if not store.old.put_in_place(work.rewriting, needed_from):
                return False
            self._counters.segments_rewritten += count
            if work.rewriting.lost:
                log.error(
                    "retention: lost is what cannot be read from=%d entries=%d", stretch.start, work.rewriting.lost
                )
            log.info(
                "retention: rewritten from=%d to=%d segments=%d bytes=%d kept=%d reason=%s",
                stretch.start,
                stretch.end,
                count,
                before - store.log.disk_bytes,
                work.rewriting.kept_bytes,
                stretch.reason or "garbage",
                extra=ALWAYS_WRITTEN,
            )
            return True


def stretch_of(
    store: MessageStore, start: int, reason: Reason | None, rest_of: Callable[[Segment, int], SegmentRest]
) -> LogStretch | None:
    """Return a segment with the neighbors that are rewritten with it; None if it is there no more, or written to."""
    segments = store.log.segments
    index = next((number for number, each in enumerate(segments[:-1]) if each.start == start), None)
    if index is None:
        return None
    kept: list[tuple[int, bool]] = []
    for segment, following in itertools.pairwise(segments[: index + 2]):
        rest = rest_of(segment, following.start)
        if segment.start != start:
            kept.append((rest.aged_bytes, rest.is_rest and _goes_with(rest.aged_bytes, rest.lasting_bytes, reason)))
        elif reason is None:
            kept.append((max(segment.used_bytes - rest.garbage_bytes, 0), False))
        else:
            kept.append((rest.aged_bytes if reason is Reason.AGE else rest.lasting_bytes, False))
    part = with_neighbors(kept, index, store.options.segment_bytes)
    total = sum(kept[number][0] for number in part)
    return LogStretch(segments[part.start].start, segments[index + 1].start, total, reason)


def _goes_with(aged_bytes: int, lasting_bytes: int, reason: Reason | None) -> bool:
    return reason in (None, Reason.AGE) or aged_bytes == lasting_bytes
