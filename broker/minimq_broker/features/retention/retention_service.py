"""Retention: deletes the oldest segments when they are too old or too many, or when the disk is too full."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import struct
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial

import lmdb

from minimq_broker.calls.store_handle import StoreHandle, in_steps
from minimq_broker.commit.message_store import MessageStore
from minimq_broker.features.retention.retention import (
    AGED_AT_ONCE,
    NO_REST,
    Expired,
    LiveData,
    Reason,
    SegmentInfo,
    early_bytes,
    expired,
    is_outdated,
    is_worthwhile,
    with_neighbors,
)
from minimq_broker.log.clock import now_ms
from minimq_broker.log.lmdb_file import DAMAGE
from minimq_broker.log.rewriting import Rewriting
from minimq_broker.log.segment import Segment
from minimq_broker.metrics.counters import Counters
from minimq_common.errors import StoreError, StoreFull
from minimq_common.record_limit import ALWAYS_WRITTEN
from minimq_common.serving.periodic import PeriodicTask

log = logging.getLogger(__name__)

#: Check interval while it is not known which entries are needed, because the state is not saved yet.
_SOON_S = 1.0

#: One slice of a rewriting reads at most this.
_SLICE_BYTES = 8 << 20
_SLICE_ENTRIES = 2_000
#: Minimum pause between two slices. A pause also lasts at least as long as the slice before it.
_PAUSE_S = 0.005
#: Disk space that a rewriting leaves free.
_SPARE_BYTES = 64 << 20


class Retention(PeriodicTask):
    """Checks the segments periodically. Everything that touches the disk runs on another thread."""

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
            lambda: check_interval_s if self._knows_needed else min(check_interval_s, _SOON_S),
            log,
            at_once=True,
        )
        self._lowest_needed = lowest_needed
        self._clock_ms = clock_ms
        self._loop = asyncio.get_running_loop()
        #: Size of the log after the last early deletion. Growth since then bounds the next one; see `early_bytes`.
        self._kept_bytes = 0
        #: Whether it is known which entries of old segments are needed.
        self._knows_needed = False
        #: Segments whose age could not be read, to log each once.
        self._unreadable: set[int] = set()

    def look_now(self) -> None:
        """Check at once, because the disk has become fuller. Thread-safe."""
        if not self.is_stopping:
            self._loop.call_soon_threadsafe(self.wake)

    async def _look(self) -> None:
        await asyncio.to_thread(self._look_at_topics)
        found = await asyncio.to_thread(self._find, self._lowest_needed())
        if sum(item.reason is Reason.AGE for item in found) >= AGED_AT_ONCE:
            log.warning("retention: many segments are too old, the next check continues count=%d", len(found))
        no_room: StoreFull | None = None
        for item in found:
            if not item.is_removed:
                try:
                    if not await self._rewrite(item.segment.start, item.reason):
                        return
                except StoreFull as error:  # rewriting another segment may fit, and make room for this one
                    no_room = no_room or error
                    continue
            elif not await asyncio.to_thread(self._delete, item):
                return
            self._count(item)
        if no_room is not None:
            raise no_room
        garbage = await asyncio.to_thread(self._find_garbage, self._lowest_needed())
        if garbage is not None:
            await self._rewrite(garbage, None)

    # ---- rewriting: in slices, with pauses, and only if there is room ----------------------------------

    async def _rewrite(self, start: int, reason: Reason | None) -> bool:
        return bool(await in_steps(self._handle, partial(self._rewritten, start, reason), self._pause))

    async def _pause(self, spent_s: float) -> None:
        await asyncio.sleep(max(_PAUSE_S, spent_s))

    def _rewritten(self, start: int, reason: Reason | None, store: MessageStore) -> Generator[None, None, bool]:
        segments, kept_bytes = self._stretch(store, start, reason)
        if not segments or any(segment.start in store.log.damage.reasons for segment in segments):
            return False
        end = next(each.start for each in store.log.segments if each.start > start)
        free = store.disk.look()[0].free_bytes
        if free < kept_bytes + _SPARE_BYTES:
            raise StoreFull(
                f"segments {segments[0].start} to {end} cannot be rewritten: about {kept_bytes} bytes of them are "
                f"needed, such as delayed messages, and {free} are left on the disk: free some"
            )
        made = Rewriting(store.log, segments, end, store.old.choice(reason), store.old.mark)
        with closing(made):
            has_more = True
            while has_more:
                try:
                    has_more = made.step(_SLICE_BYTES, _SLICE_ENTRIES)
                except DAMAGE as error:
                    store.log.report_damage(made.at.start, str(error))
                    raise
                yield
                if has_more and self.is_woken:
                    return False
            return self._put_in_place(store, made, reason)

    def _stretch(self, store: MessageStore, start: int, reason: Reason | None) -> tuple[list[Segment], int]:
        # Returns the segment with the neighbors to rewrite with it, and about how many bytes of them stay.
        segments = store.log.segments
        index = next((number for number, each in enumerate(segments[:-1]) if each.start == start), None)
        if index is None:  # it is gone, or being written
            return [], 0
        kept: list[tuple[int, bool]] = []
        for segment, following in itertools.pairwise(segments[: index + 2]):
            rest = self._rest(store, segment, following.start)
            if segment.start != start:
                goes_with = reason in (None, Reason.AGE) or rest.aged_bytes == rest.lasting_bytes
                is_sound = segment.start not in store.log.damage.reasons
                kept.append((rest.aged_bytes, rest.is_rest and goes_with and is_sound))
            elif reason is None:
                kept.append((max(segment.used_bytes - rest.garbage_bytes, 0), False))
            else:
                kept.append((rest.aged_bytes if reason is Reason.AGE else rest.lasting_bytes, False))
        part = with_neighbors(kept, index, store.options.segment_bytes)
        return [segments[number] for number in part], sum(kept[number][0] for number in part)

    def _put_in_place(self, store: MessageStore, made: Rewriting, reason: Reason | None) -> bool:
        before = store.log.disk_bytes
        with store.log.kept:  # no copy of the log begins between the check and the change
            if not store.old.put_in_place(made, self._lowest_needed()):
                return False
        self._counters.segments_rewritten += len(made.former)
        log.info(
            "retention: rewritten from=%d to=%d segments=%d bytes=%d kept=%d reason=%s",
            made.start,
            made.end,
            len(made.former),
            before - store.log.disk_bytes,
            made.kept_bytes,
            reason or "garbage",
            extra=ALWAYS_WRITTEN,
        )
        return True

    # ---- checking -----------------------------------------------------------------------------------

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
            self._knows_needed = store.old.known_to >= 0

    def _delete(self, item: Expired) -> bool:
        with self._handle.reading() as store:
            with store.log.kept:  # no copy of the log begins between the check and the change
                is_oldest = store.log.segments[0].start == item.segment.start
                is_deleted = is_oldest and store.old.remove_first(self._lowest_needed())
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
        freed = max(item.segment.size_bytes - item.kept_bytes, 0)  # `kept_bytes` is an estimate
        self._counters.segments_deleted += item.is_removed
        self._counters.bytes_deleted += freed
        if item.reason is Reason.DISK:
            self._counters.bytes_deleted_early += freed
            self._kept_bytes = self._handle.store.log.disk_bytes

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
                except StoreFull as error:  # the deletions below may make room
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
                "will reject messages",
                excess,
            )
        self._counters.disk_filled_by_others = fill

    def _seal(self, store: MessageStore) -> None:
        commit_log, position = store.log, store.end
        facts = self._facts(store, commit_log.active, position)
        if is_outdated(facts, self._clock_ms(), store.options.retention):
            commit_log.roll(position)
            log.info("retention: sealed segment=%d, all its messages have expired", facts.start)

    def _facts(self, store: MessageStore, segment: Segment, end: int) -> SegmentInfo:
        about = segment.path.stat()
        try:
            newest = segment.newest_ms()
        except (lmdb.Error, struct.error, StoreError) as error:  # a damaged segment must not block later ones forever
            newest = about.st_mtime_ns // 1_000_000
            if segment.start not in self._unreadable:
                self._unreadable.add(segment.start)
                log.error("retention: age unreadable, uses file time segment=%d error=%s", segment.start, error)
        rest = self._rest(store, segment, end) if segment.sealed else NO_REST
        return SegmentInfo(segment.start, end, about.st_size, newest, rest)

    def _rest(self, store: MessageStore, segment: Segment, end: int) -> LiveData:
        if segment.start in store.log.damage.reasons:
            return store.old.rest_of_damaged(segment)
        try:
            return store.old.rest(segment, end)
        except DAMAGE as error:
            store.log.report_damage(segment.start, str(error))
            return store.old.rest_of_damaged(segment)
