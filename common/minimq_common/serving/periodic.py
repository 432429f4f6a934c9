"""Work on the event loop of a server: repeated in the background, or done in slices."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from minimq_common.errors import NotMaster, SystemBusy
from minimq_common.outage_log import OutageLog


class PeriodicTask:
    """Runs a function on the event loop again and again, whatever it raises, from `start` to `stop`."""

    def __init__(
        self,
        name: str,
        run: Callable[[], Awaitable[object] | None],
        interval_s: float | Callable[[], float],
        log: logging.Logger,
        *,
        at_once: bool = False,
    ) -> None:
        self._name, self._run, self._log, self._at_once = name, run, log, at_once
        #: From the end of a run to the next one; asked for after each.
        self._interval_s = interval_s if callable(interval_s) else lambda: interval_s
        self._outage = OutageLog(log)
        self._woken = asyncio.Event()
        self.is_stopping = False  # True: the present run is the last one
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Run for the first time after the interval, or at once."""
        if self.is_stopping:  # it was stopped before
            self.is_stopping = False
            self._woken.clear()
        self._task = asyncio.create_task(self._keep_running(), name=self._name)

    def wake(self) -> None:
        """Run now, or once more after the present run. Not thread-safe."""
        self._woken.set()

    @property
    def is_woken(self) -> bool:
        """True if another run, or the end, follows the present run at once."""
        return self._woken.is_set()

    async def stop(self, *, cancel: bool = True) -> None:
        """Cancel the present run, or wait for its end. Idempotent."""
        task, self._task = self._task, None
        self.is_stopping = True
        self._woken.set()
        if task is not None:
            if cancel:
                task.cancel()
            await asyncio.wait((task,))

    async def _keep_running(self) -> None:
        if self._at_once:
            self._woken.set()
        interval_s = self._interval_s()
        while True:
            try:
                async with asyncio.timeout(interval_s):
                    await self._woken.wait()
            except TimeoutError:
                pass
            if self.is_stopping:
                return
            self._woken.clear()
            interval_s = await self._try(interval_s)

    async def _try(self, interval_s: float) -> float:
        try:
            running = self._run()
            if running is not None:
                await running
            interval_s = self._interval_s()
        except (SystemBusy, NotMaster) as error:
            self._log.debug("%s: not now reason=%s", self._name, error)
        except Exception as error:  # noqa: BLE001 - it has to continue
            self._outage.failed("%s: not now, will try again error=%s", self._name, error, cause=error)
        except asyncio.CancelledError:
            if self.is_stopping:
                raise
            self._outage.failed("%s: what it waited for was cancelled, will try again", self._name)
        else:
            self._outage.worked("%s: goes on", self._name)
        return interval_s


T = TypeVar("T")

#: Things that are worked on in one go: in one to two milliseconds, where each takes some microseconds.
SLICE = 250


async def slices(items: Sequence[T], size: int = SLICE) -> AsyncIterator[Sequence[T]]:
    """Yield items in parts, and let other tasks of the event loop run in between."""
    for start in range(0, len(items), size):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + size]
