"""Retention: deletes the oldest segments when they are too old or too many, or when the disk is too full."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Generator
from contextlib import closing

from minimq_broker.commit.off_loop import in_steps
from minimq_broker.commit.store import Store
from minimq_broker.features.retention.old_segments import OldSegments
from minimq_broker.features.retention.retention import (
    AGED_AT_ONCE,
    Expired,
    Reason,
    RetentionOptions,
    early_bytes,
    expired,
    is_outdated,
    is_worthwhile,
    with_neighbors,
)
from minimq_broker.log.lmdb_file import DAMAGE
from minimq_broker.log.rewriting import Rewriting
from minimq_broker.log.segment import Segment
from minimq_broker.metrics.counters import Counters
from minimq_common.errors import StoreFull
from minimq_common.record_limit import ALWAYS_WRITTEN
from minimq_common.serving.periodic import PeriodicTask

log = logging.getLogger(__name__)

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
        store: Store,
        counters: Counters,
        check_interval_s: float,
        lowest_needed: Callable[[], int],
        clock_ms: Callable[[], int],
        options: RetentionOptions,
    ) -> None:
        self._store, self._counters = store, counters
        super().__init__("retention", self._look, check_interval_s, log, at_once=True)
        self._lowest_needed = lowest_needed
        self._clock_ms, self._options = clock_ms, options
        self._old: OldSegments | None = None
        self._loop = asyncio.get_running_loop()
        #: Size of the log after the last early deletion. Growth since then bounds the next one; see `early_bytes`.
        self._kept_bytes = 0
        self.dead_letters_deleted = self.dead_letter_bytes = 0

    def look_now(self) -> None:
        """Check at once, because the disk has become fuller. Thread-safe."""
        if not self.is_stopping:
            self._loop.call_soon_threadsafe(self.wake)

    async def _look(self) -> None:
        await in_steps(self._store, self._round, self._pause)

    async def _pause(self, spent_s: float) -> None:
        await asyncio.sleep(max(_PAUSE_S, spent_s))

    def _round(self, store: Store) -> Generator[None, None, None]:
        if self._old is None or self._old.log is not store.log:
            self._old = OldSegments(store, self._options)
        old = self._old
        old.look(self._clock_ms())
        self.dead_letters_deleted, self.dead_letter_bytes = (
            old.topics.dead_letters_deleted,
            old.topics.dead_letter_bytes,
        )
        found = self._find(old)
        if sum(item.reason is Reason.AGE for item in found) >= AGED_AT_ONCE:
            log.warning("retention: many segments are too old, the next check continues count=%d", len(found))
        no_room: StoreFull | None = None
        for item in found:
            yield
            try:
                if not (self._delete(store, item) if item.is_removed else (yield from self._rewrite(old, item))):
                    return
            except StoreFull as error:  # rewriting another segment may fit, and make room for this one
                no_room = no_room or error
            else:
                self._count(store, item)
        if no_room is not None:
            raise no_room
        yield
        garbage = self._find_garbage(old)
        if garbage is not None:
            yield from self._rewrite(old, garbage)

    # ---- rewriting: in slices, with pauses, and only if there is room ----------------------------------

    def _rewrite(self, old: OldSegments, item: Expired) -> Generator[None, None, bool]:
        store, reason = old.store, item.reason
        segments, kept_bytes = self._stretch(old, item.segment.start, reason)
        if not segments or any(segment.start in store.log.damage for segment in segments):
            return False
        end = item.segment.end
        free = store.disk.look()[0].free_bytes
        if free < kept_bytes + _SPARE_BYTES:
            raise StoreFull(
                f"segments {segments[0].start} to {end} cannot be rewritten: about {kept_bytes} bytes of them are "
                f"needed, such as delayed messages, and {free} are left on the disk: free some"
            )
        made = Rewriting(store.log, segments, end, old.choice(reason), old.pins)
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

    def _stretch(self, old: OldSegments, start: int, reason: Reason | None) -> tuple[list[Segment], int]:
        # Returns the segment with the neighbors to rewrite with it, and about how many bytes of them stay.
        store, segments = old.store, old.store.log.segments
        index = next((number for number, each in enumerate(segments[:-1]) if each.start == start), None)
        if index is None:  # it is gone, or being written
            return [], 0
        kept: list[tuple[int, bool]] = []
        for segment in segments[: index + 1]:
            rest = old.rest(segment)
            if segment.start != start:
                goes_with = reason in (None, Reason.AGE) or rest.aged_bytes == rest.lasting_bytes
                is_sound = segment.start not in store.log.damage
                kept.append((rest.aged_bytes, rest.is_rest and goes_with and is_sound))
            elif reason is None:
                kept.append((max(segment.used_bytes - rest.garbage_bytes, 0), False))
            else:
                kept.append((rest.aged_bytes if reason is Reason.AGE else rest.lasting_bytes, False))
        part = with_neighbors(kept, index, store.options.segment_bytes)
        return [segments[number] for number in part], sum(kept[number][0] for number in part)

    def _put_in_place(self, store: Store, made: Rewriting, reason: Reason | None) -> bool:
        before = store.log.disk_bytes
        with store.log.kept:  # no copy of the log begins between the check and the change
            if not store.put_in_place(made, self._lowest_needed()):
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

    def _find_garbage(self, old: OldSegments) -> Expired | None:
        store, free_to = old.store, min(old.known_to, self._lowest_needed())
        before_ms = self._clock_ms() - math.ceil(self._options.rewrite_after_s * 1000)
        for segment, following in itertools.pairwise(store.log.segments):
            if following.start > free_to:
                break
            size = min(segment.used_bytes, following.start - segment.start)
            is_old = (segment.newest_ms() or 0) <= before_ms
            if is_old and is_worthwhile(size, old.rest(segment).garbage_bytes, store.options.segment_bytes):
                return Expired(old.info(segment, following.start), None)
        return None

    def _delete(self, store: Store, item: Expired) -> bool:
        with store.log.kept:  # no copy of the log begins between the check and the change
            is_oldest = store.log.segments[0].start == item.segment.start
            is_deleted = is_oldest and store.remove_first(self._lowest_needed())
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

    def _count(self, store: Store, item: Expired) -> None:
        freed = max(item.segment.size_bytes - item.kept_bytes, 0)  # `kept_bytes` is an estimate
        self._counters.segments_deleted += item.is_removed
        self._counters.bytes_deleted += freed
        if item.reason is Reason.DISK:
            self._counters.bytes_deleted_early += freed
            self._kept_bytes = store.log.disk_bytes

    def _find(self, old: OldSegments) -> list[Expired]:
        store, now, rules = old.store, self._clock_ms(), self._options.rules
        excess = store.disk.excess_bytes()
        segments = store.log.segments
        ends = [*(segment.start for segment in segments[1:]), store.state.position]
        facts = [old.info(segment, end) for segment, end in zip(segments, ends, strict=True)]
        if is_outdated(facts[-1], now, rules):
            try:
                store.writer.call(lambda: self._seal(old))
            except StoreFull as error:  # the deletions below may make room
                log.warning("retention: no segment sealed, will try again error=%s", error)
        used = sum(each.size_bytes for each in facts)
        self._kept_bytes = min(self._kept_bytes, used)
        early = early_bytes(excess, facts, used - self._kept_bytes)
        self._note_others(bool(excess) and not early, excess)
        free_to = min(old.known_to, self._lowest_needed())
        return expired(facts, now, rules, free_to=free_to, excess_bytes=early)

    def _note_others(self, fill: bool, excess: int) -> None:
        if fill and not self._counters.disk_filled_by_others:
            log.warning(
                "retention: deletes nothing early, since others fill the disk excess=%d: free space, or the broker "
                "will reject messages",
                excess,
            )
        self._counters.disk_filled_by_others = fill

    def _seal(self, old: OldSegments) -> None:
        store = old.store
        active = old.info(store.log.active, store.end)
        if is_outdated(active, self._clock_ms(), self._options.rules):
            store.log.roll(store.end)
            log.info("retention: sealed segment=%d, all its messages have expired", active.start)
