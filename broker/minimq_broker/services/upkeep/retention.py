"""Retention: deletes the oldest segments when they are too old, too many, or when the disk needs them back.

Segments of which something is still needed are rewritten instead, and so are those with much garbage.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

import lmdb

from minimq_broker.core.state import State
from minimq_broker.core.upkeep.retention import (
    AGED_AT_ONCE,
    NO_REST,
    Expired,
    Reason,
    SegmentFacts,
    SegmentRest,
    early_bytes,
    expired,
    is_outdated,
    is_worthwhile,
    with_neighbors,
)
from minimq_broker.services.clock import now_ms
from minimq_broker.services.counters import Counters
from minimq_broker.services.store_handle import StoreHandle
from minimq_broker.store.lmdb_file import DAMAGE
from minimq_broker.store.message_store import MessageStore
from minimq_broker.store.segment import Segment
from minimq_broker.store.upkeep.rewriting import Rewriting
from minimq_common.errors import StoreError, StoreFull
from minimq_common.serving.logs import ALWAYS_WRITTEN
from minimq_common.serving.periodic import PeriodicTask

log = logging.getLogger(__name__)

#: Pause before the next look as long as it is not known what is needed, since the state is not saved yet, in seconds.
_SOON_S = 1.0

#: What one slice reads, at most.
_SLICE_BYTES = 8 << 20
_SLICE_ENTRIES = 2_000
#: The shortest pause between two slices, in seconds. It is at least as long as the slice has taken.
_PAUSE_S = 0.005
#: Room that stays on the disk beside what a rewriting makes.
_SPARE_BYTES = 64 << 20


class Retention(PeriodicTask):
    """Looks at the segments again and again, from `start` to `stop`. What touches the disk runs on another thread."""

    def __init__(
        self,
        handle: StoreHandle,
        counters: Counters,
        check_interval_s: float,
        lowest_needed: Callable[[], int],
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._handle, self._counters = handle, counters
        super().__init__(
            "retention",
            self._look,
            lambda: check_interval_s if self._knows else min(check_interval_s, _SOON_S),
            log,
            at_once=True,
        )
        self._lowest_needed = lowest_needed
        self._clock_ms = clock_ms
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rewriter = Rewriter(handle, counters, lowest_needed, lambda: self.is_woken)
        #: Size of the log after something was deleted early, which may go on with what it has grown since.
        self._kept_bytes = 0
        #: Whether it is known what of old segments is needed.
        self._knows = False
        #: Segments whose age could not be read, so that it is logged once.
        self._unreadable: set[int] = set()

    def start(self) -> None:
        """Begin to look."""
        self._loop = asyncio.get_running_loop()
        super().start()

    def look_now(self) -> None:
        """Check at once: the disk gets fuller than it should be. Any thread may call this."""
        if self._loop is not None and not self.is_stopping:
            self._loop.call_soon_threadsafe(self.wake)

    async def _look(self) -> None:
        await asyncio.to_thread(self._look_at_topics)
        found = await asyncio.to_thread(self._find, self._lowest_needed())
        if sum(item.reason is Reason.AGE for item in found) >= AGED_AT_ONCE:
            log.warning("retention: many segments are too old, the next check continues count=%d", len(found))
        no_room: StoreFull | None = None
        for item in found:
            if self.is_stopping:
                return
            if not item.is_removed:
                try:
                    if not await self._rewrite(item.segment.start, item.reason):
                        return
                except StoreFull as error:  # there may be room for another one, which makes room for this one
                    no_room = no_room or error
                    continue
            elif not await asyncio.to_thread(self._delete, item, self._lowest_needed()):
                return
            self._count(item)
        if no_room is not None:
            raise no_room
        garbage = await asyncio.to_thread(self._find_garbage, self._lowest_needed())
        if garbage is not None and not self.is_stopping:
            await self._rewrite(garbage, None)

    async def _rewrite(self, start: int, reason: Reason | None) -> bool:
        stretch = await asyncio.to_thread(self._stretch, start, reason)
        return stretch is not None and await self._rewriter.rewrite(stretch)

    def _stretch(self, start: int, reason: Reason | None) -> LogStretch | None:
        with self._handle.reading() as store:
            return stretch_of(store, start, reason, lambda segment, end: self._rest(store, segment, end))

    def _find_garbage(self, needed_from: int) -> int | None:
        with self._handle.reading() as store:
            before_ms = self._clock_ms() - math.ceil(store.options.rewrite_after_s * 1000)
            free_to = min(store.old.rewritable_to, needed_from)
            for segment, following in itertools.pairwise(store.log.segments):
                if following.start > free_to:
                    break
                rest = self._rest(store, segment, following.start)
                size = min(segment.used_bytes, following.start - segment.start)
                if not is_worthwhile(size, rest.garbage_bytes, store.options.segment_bytes):
                    continue
                if (segment.newest_ms() or 0) <= before_ms:
                    return segment.start
            return None

    def _look_at_topics(self) -> None:
        with self._handle.reading() as store:
            store.old.look(self._clock_ms())
            self._knows = store.old.known_to >= 0

    def _delete(self, item: Expired, needed_from: int) -> bool:
        with self._handle.reading() as store:
            is_oldest = store.log.segments[0].start == item.segment.start
            is_deleted = is_oldest and store.remove_first(needed_from)
            if is_deleted:
                log.log(
                    logging.WARNING if item.reason is Reason.DISK else logging.INFO,
                    "retention: deleted segment=%d bytes=%d reason=%s log_start=%d",
                    item.segment.start,
                    item.segment.size_bytes,
                    item.reason,
                    store.log.start,
                    extra=ALWAYS_WRITTEN,
                )
            return is_deleted

    def _count(self, item: Expired) -> None:
        if item.reason is Reason.DISK:
            self._counters.bytes_deleted_early += item.segment.size_bytes - item.kept_bytes
            self._kept_bytes = self._handle.store.log.disk_bytes
        if item.is_removed:
            self._counters.segments_deleted += 1
            self._counters.bytes_deleted += item.segment.size_bytes

    def _find(self, needed_from: int) -> list[Expired]:
        with self._handle.reading() as store:
            now, rules = self._clock_ms(), store.options.retention
            excess = store.disk.excess_bytes()
            segments = store.log.segments
            ends = [*(segment.start for segment in segments[1:]), store.state.position]
            facts = [self._facts(store, segment, end) for segment, end in zip(segments, ends, strict=True)]
            if is_outdated(facts[-1], now, rules):
                try:
                    store.call(lambda: self._seal(store))
                except StoreFull as error:  # what is deleted below may make room
                    log.warning("retention: no segment sealed, will try again error=%s", error)
            free_to = min(store.old.rewritable_to, needed_from)
            used = sum(each.size_bytes for each in facts)
            self._kept_bytes = min(self._kept_bytes, used)
            early = early_bytes(excess, facts, used - self._kept_bytes)
            self._note_others(bool(excess) and not early, excess)
            return expired(facts, now, rules, free_to=free_to, excess_bytes=early)

    def _note_others(self, fill: bool, excess: int) -> None:
        if fill and not self._counters.disk_filled_by_others:
            log.warning(
                "retention: deletes nothing early, since others fill the disk excess=%d: free space, or the broker "
                "will refuse messages",
                excess,
            )
        self._counters.disk_filled_by_others = fill

    def _seal(self, store: MessageStore) -> None:
        commit_log, position = store.log, store.end
        facts = self._facts(store, commit_log.active, position)
        if is_outdated(facts, self._clock_ms(), store.options.retention):
            commit_log.roll(position)
            log.info("retention: sealed segment=%d, all its messages are over age", facts.start)

    def _facts(self, store: MessageStore, segment: Segment, end: int) -> SegmentFacts:
        about = segment.path.stat()
        try:
            newest = segment.newest_ms()
        except (lmdb.Error, struct.error, StoreError) as error:  # if damaged, it must not keep later segments forever
            newest = about.st_mtime_ns // 1_000_000
            if segment.start not in self._unreadable:
                self._unreadable.add(segment.start)
                log.error("retention: goes by the time of the file segment=%d error=%s", segment.start, error)
        rest = self._rest(store, segment, end) if segment.sealed else NO_REST
        return SegmentFacts(segment.start, end, about.st_size, newest, rest)

    def _rest(self, store: MessageStore, segment: Segment, end: int) -> SegmentRest:
        try:
            return store.old.rest(segment, end)
        except DAMAGE as error:
            if segment.start not in self._unreadable:
                self._unreadable.add(segment.start)
                log.error(
                    "retention: dead letters alone are kept of a damaged segment=%d error=%s", segment.start, error
                )
            return store.old.rest_of_damaged(segment)


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

    async def rewrite(self, stretch: LogStretch) -> bool:
        """Rewrite the segments of a stretch; return whether it was done."""
        work = await asyncio.to_thread(self._begin, stretch)
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

    def _begin(self, stretch: LogStretch) -> _StoreRewriting | None:
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
            choice = store.old.choice(stretch.reason)
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
