"""The scrub: rereads old segments slowly, so that damage is found before the data is needed."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator

from minimq_broker.services.counters import Counters
from minimq_broker.services.store_handle import StoreHandle
from minimq_broker.store.lmdb_file import DAMAGE
from minimq_broker.store.segment import Segment
from minimq_broker.store.upkeep.verify import Verification
from minimq_common.errors import CorruptEntry
from minimq_common.serving.periodic import PeriodicTask

log = logging.getLogger(__name__)

#: What one step looks at, at most, and the time between two steps in seconds: 4 MiB and 1,000 entries in a second.
_STEP_BYTES = 1 << 20
_STEP_ENTRIES = 250
_STEP_S = 0.25
#: Pause between checks of pages, in seconds: most of it is for others.
_PAGES_S = 0.02
#: Time before the first round, in seconds: a start has better things to do.
_FIRST_S = 60.0
#: Pause before the next attempt when pages could not be checked, in seconds: a copy of everything may be on its way.
_AGAIN_S = 2.0


class Scrub(PeriodicTask):
    """Verifies all sealed segments in rounds, on a thread; first the pages that the start left out."""

    def __init__(self, handle: StoreHandle, counters: Counters, interval_s: float) -> None:
        self._handle, self._counters = handle, counters
        super().__init__("scrub", self._scrub, lambda: self._pause_s, log, at_once=True)
        self._round_s, self._pause_s = interval_s or math.inf, _AGAIN_S
        self._has_seen_pages = False

    async def _scrub(self) -> None:
        if self._has_seen_pages:
            self._pause_s = self._round_s
            await self._round()
        else:
            await self._look_at_pages()
            self._has_seen_pages, self._pause_s = True, min(self._round_s, _FIRST_S)

    async def _look_at_pages(self) -> None:
        for segment in reversed(self._handle.store.log.segments[:-1]):
            walk, may_go_on = segment.pages.walk(), not segment.pages.is_over
            while may_go_on:
                may_go_on = await asyncio.to_thread(self._walk_on, segment, walk)
                await asyncio.sleep(_PAGES_S)

    def _walk_on(self, segment: Segment, walk: Iterator[None]) -> bool:
        with self._handle.reading() as store:
            try:
                return next(walk, self) is not self
            except CorruptEntry as error:
                store.log.report_damage(segment.start, error.message)
                return False

    async def _round(self) -> None:
        position = -1
        while (start := self._next(position)) is not None:
            await self._verify(start)
            position = start

    def _next(self, position: int) -> int | None:
        sealed = self._handle.store.log.segments[:-1]
        return next((segment.start for segment in sealed if segment.start > position), None)

    async def _verify(self, start: int) -> None:
        verification: Verification | None = None
        while verification is None or not verification.is_over:
            verification = await asyncio.to_thread(self._step, start, verification)
            if verification is None:
                return
            await asyncio.sleep(0 if verification.is_over else _STEP_S)
        self._counters.segments_verified += 1

    def _step(self, start: int, verification: Verification | None) -> Verification | None:
        with self._handle.reading() as store:
            found = [(one, two.start) for one, two in zip(store.log.segments, store.log.segments[1:], strict=False)]
            segment, end = next(((one, end) for one, end in found if one.start == start), (None, 0))
            if segment is None or store.log.damage.refuses(start):
                return None
            if verification is None or verification.segment is not segment:
                verification = Verification(segment, end)
            try:
                verification.step(_STEP_BYTES, _STEP_ENTRIES)
            except DAMAGE as error:
                store.log.report_damage(start, str(error))
                return None
            return verification
