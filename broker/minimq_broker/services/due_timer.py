"""The timer of delayed batches: it has those published that are due."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from minimq_broker.services.clock import now_ms
from minimq_broker.services.counters import Counters
from minimq_broker.services.store_handle import StoreHandle
from minimq_broker.services.writes import Writes
from minimq_broker.store.jobs import DueJob
from minimq_common.errors import MiniMQError, NotMaster, SystemBusy
from minimq_common.outage_log import OutageLog

log = logging.getLogger(__name__)

#: How often it looks at the clock, which may be set, at the role of the broker, and again after an error, in seconds.
_LOOK_S = 0.5
#: Time from one commit to the next, in seconds: batches that are due one after the other share commits.
_PACE_S = 0.004


class DueTimer:
    """Publishes delayed batches when they are due, at a master, from `start` to `stop`. Belongs to the event loop."""

    def __init__(
        self, handle: StoreHandle, writes: Writes, counters: Counters, clock_ms: Callable[[], int] = now_ms
    ) -> None:
        self._handle, self._writes, self._counters = handle, writes, counters
        self._clock_ms = clock_ms
        self._wake = asyncio.Event()
        #: What it waits for, in ms since 1970; None while it waits for the next look.
        self._next_ms: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._outage = OutageLog(log)

    def start(self) -> None:
        """Start publishing what is due."""
        self._task = asyncio.create_task(self._run(), name="due-timer")

    async def stop(self) -> None:
        """Leave the rest to the next start, or to the next master. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()  # it may wait for replicas that have gone
            await asyncio.wait((task,))

    def look(self) -> None:
        """Look now: this broker may have begun to lead."""
        self._wake.set()

    def delayed(self, due_ms: int) -> None:
        """Hear that a batch is delayed until this time, in ms since 1970."""
        if self._next_ms is None or due_ms < self._next_ms:
            self._wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            began = loop.time()
            has_more = False
            try:
                has_more = await self._once()
                self._outage.worked("delays: go on")
            except (SystemBusy, NotMaster) as error:
                log.debug("delays: not now reason=%s", error)
            except MiniMQError as error:
                self._outage.failed("delays: not now, will try again error=%s", error.message, cause=error)
            except Exception as error:  # noqa: BLE001 - it has to go on: what is due must be published
                self._outage.crashed("delays: not now, will try again error=%r", error, cause=error)
            if not has_more:
                await asyncio.sleep(began + _PACE_S - loop.time())
                await self._wait()

    async def _once(self) -> bool:
        self._next_ms = None
        store = self._handle.store
        if not store.leads:
            return False
        next_ms = store.next_due_ms
        if next_ms is None or next_ms > self._clock_ms():
            self._next_ms = next_ms
            return False
        self._writes.check(to_sender=True)  # where a new batch would be refused, this is, too
        self._count(job := await self._writes.publish_due())
        if not job.has_more and (job.published or store.next_due_ms != next_ms):
            self._next_ms = store.next_due_ms  # else it got past nothing, and looks again after a while
        return job.has_more

    def _count(self, job: DueJob) -> None:
        counters = self._counters
        counters.delayed_published += job.messages
        counters.delayed_lost += job.lost
        for late_ms in job.late_ms:
            counters.delayed_late_s.add(max(late_ms, 0) / 1000)

    async def _wait(self) -> None:
        left_s = _LOOK_S if self._next_ms is None else (self._next_ms - self._clock_ms()) / 1000
        try:
            async with asyncio.timeout(min(max(left_s, 0.0), _LOOK_S)):
                await self._wake.wait()
        except TimeoutError:
            pass
