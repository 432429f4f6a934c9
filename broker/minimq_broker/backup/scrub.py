"""The scrub: makes the checksums of sealed segments, and slowly rereads them to find damage before a reader does."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial

from minimq_broker.commit.off_loop import in_steps
from minimq_broker.commit.store import Store
from minimq_broker.log.file_checksum import has_checksum, make_checksum, verify_checksum
from minimq_broker.log.lmdb_file import DAMAGE
from minimq_broker.log.segment import Segment
from minimq_broker.log.start_check import REMEDY
from minimq_broker.metrics.counters import Counters
from minimq_common.serving.periodic import PeriodicTask

log = logging.getLogger(__name__)

#: Pause between two steps of a verification: up to 16 MiB per second.
_STEP_S = 0.0625
#: Interval at which it searches for sealed segments without a checksum, and for those that a reader could not read.
_CHECK_INTERVAL_S = 1.0
#: Delay of the first round, so that it does not slow down the start.
_FIRST_S = 60.0


class Scrub(PeriodicTask):
    """Verifies all sealed segments in rounds, on a thread; new and suspected ones at once."""

    def __init__(self, store: Store, counters: Counters, interval_s: float) -> None:
        self._store, self._counters = store, counters
        self._round_s = interval_s or math.inf
        self._round_at = time.monotonic() + min(self._round_s, _FIRST_S if interval_s else math.inf)
        #: Verifications that are due, a segment each.
        self._due: deque[Callable[[Store], Generator[None, None, bool]]] = deque()
        #: Starts of segments that a reader could not read, and that are verified or logged.
        self._known: set[int] = set()
        super().__init__("scrub", self._scrub, min(_CHECK_INTERVAL_S, self._round_s), log)

    async def _scrub(self) -> None:
        for segment in self._store.log.segments[:-1]:
            if not has_checksum(segment.path):
                made = partial(_steps, segment, partial(make_checksum, segment.path))
                # As fast as segments are written, so that few lack a checksum at the next start.
                await in_steps(self._store, made, asyncio.sleep)
        if not self._due:
            self._find_due()
        if self._due:
            if await in_steps(self._store, self._due.popleft(), lambda _: asyncio.sleep(_STEP_S)):
                self._counters.segments_verified += 1
            self.wake()

    def _find_due(self) -> None:
        is_round = time.monotonic() >= self._round_at
        commit_log = self._store.log
        new = {start: reason for start, reason in commit_log.suspects.items() if start not in self._known}
        self._known |= new.keys()
        for start, reason in new.items():
            log.error("store: a read failed segment=%d reason=%s: see minimq-broker check", start, reason)
        for segment in commit_log.segments[:-1]:
            if is_round or segment.start in new:
                self._due.append(partial(_steps, segment, partial(verify_checksum, segment.path)))
        if is_round:
            self._round_at = time.monotonic() + self._round_s


def _steps(segment: Segment, work: Callable[[], Iterator[None]], store: Store) -> Generator[None, None, bool]:
    """Do work on a sealed segment in steps; return whether it was finished. Marks a damaged segment."""
    try:
        for _ in work():
            if segment not in store.log.segments:
                return False
            yield
    except FileNotFoundError:  # removed meanwhile
        return False
    except DAMAGE as error:
        if segment in store.log.segments and store.log.mark_damaged(segment.start, str(error)):
            log.error("store: a segment is damaged segment=%d reason=%s: %s", segment.start, error, REMEDY)
        return False
    return True
