"""The scrub: slowly rereads old segments to find damage before the data is needed."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Generator
from functools import partial
from itertools import pairwise

from minimq_broker.backup.check import verified
from minimq_broker.calls.store_handle import StoreHandle, in_steps
from minimq_broker.commit.message_store import MessageStore
from minimq_broker.log.lmdb_file import DAMAGE
from minimq_broker.log.segment import Segment
from minimq_broker.metrics.counters import Counters
from minimq_common.errors import CorruptEntry
from minimq_common.serving.periodic import PeriodicTask

log = logging.getLogger(__name__)

#: Bounds of one step, and the pause between two: up to 4 MiB and 1,000 entries per second.
_STEP_BYTES = 1 << 20
_STEP_ENTRIES = 250
_STEP_S = 0.25
#: Pause between checks of pages.
_PAGES_S = 0.02
#: Delay of the first round, so that it does not slow down the start.
_FIRST_S = 60.0
#: Pause before the next attempt if pages could not be checked, such as while everything is copied from the master.
_AGAIN_S = 2.0


class Scrub(PeriodicTask):
    """Verifies all sealed segments in rounds, on a thread. Before the first round, checks pages the start skipped."""

    def __init__(self, handle: StoreHandle, counters: Counters, interval_s: float) -> None:
        self._handle, self._counters = handle, counters
        super().__init__("scrub", self._scrub, lambda: self._pause_s, log, at_once=True)
        self._first_s, self._round_s = min(interval_s, _FIRST_S) or math.inf, interval_s or math.inf
        self._pause_s = _AGAIN_S
        self._has_seen_pages = False

    async def _scrub(self) -> None:
        if self._has_seen_pages:
            self._pause_s = self._round_s
            await self._round()
        else:
            for segment in reversed(self._handle.store.log.segments[:-1]):
                if not await in_steps(
                    self._handle, partial(_look_at_pages, segment), lambda _: asyncio.sleep(_PAGES_S)
                ):
                    return  # the log was cut or replaced
            self._has_seen_pages, self._pause_s = True, self._first_s

    async def _round(self) -> None:
        position = -1
        while (found := self._next(position)) is not None:
            segment, end = found
            if await in_steps(self._handle, partial(_verify, segment, end), lambda _: asyncio.sleep(_STEP_S)):
                self._counters.segments_verified += 1
            position = segment.start

    def _next(self, position: int) -> tuple[Segment, int] | None:
        segments = pairwise(self._handle.store.log.segments)
        return next(((segment, later.start) for segment, later in segments if segment.start > position), None)


def _look_at_pages(segment: Segment, store: MessageStore) -> Generator[None, None, bool]:
    try:
        if not segment.pages.is_over:
            yield from segment.pages.walk()
    except CorruptEntry as error:
        store.log.report_damage(segment.start, error.message)
    return True


def _verify(segment: Segment, end: int, store: MessageStore) -> Generator[None, None, bool]:
    steps = verified(segment, end, _STEP_BYTES, _STEP_ENTRIES)
    try:
        while segment in store.log.segments and not store.log.damage.rejects(segment.start):
            if next(steps, steps) is steps:
                return True
            yield
    except DAMAGE as error:
        store.log.report_damage(segment.start, str(error))
    return False
