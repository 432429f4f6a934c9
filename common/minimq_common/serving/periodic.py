"""Background work on the event loop of a server: periodic tasks, and loops in slices."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from minimq_common.errors import NotMaster, SystemBusy
from minimq_common.retry_log import RetryLog

#: Minimum pause after a run that failed.
_RETRY_S = 0.5


class PeriodicTask:
    """Runs a function periodically on the event loop, from `start` to `stop`, whatever it raises."""

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
        #: Seconds between the end of a run and the next; evaluated after each run that succeeds.
        self._interval_s = interval_s if callable(interval_s) else lambda: interval_s
        self._outage = RetryLog(log)
        self._woken = asyncio.Event()
        self.is_stopping = False  # True: the current run is the last one
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task; the first run is after the interval, or now with `at_once`."""
        if self.is_stopping:  # restart after `stop`
            self.is_stopping = False
            self._woken.clear()
        self._task = asyncio.create_task(self._keep_running(), name=self._name)

    def wake(self) -> None:
        """Run now, or once more right after the current run. Not thread-safe."""
        self._woken.set()

    @property
    def is_woken(self) -> bool:
        """True if another run, or the end, immediately follows the current run."""
        return self._woken.is_set()

    async def stop(self) -> None:
        """Stop the task, and cancel the current run. Idempotent."""
        task, self._task = self._task, None
        self.is_stopping = True
        self._woken.set()
        if task is not None:
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
            self._log.debug("%s: skipped for now reason=%s", self._name, error)
        except Exception as error:  # noqa: BLE001 - the task must continue
            self._outage.failed("%s: failed, will try again error=%s", self._name, error, cause=error)
        except asyncio.CancelledError:
            if self.is_stopping:
                raise
            self._outage.failed("%s: cancelled while waiting, will try again", self._name)
        else:
            self._outage.worked("%s: works again", self._name)
            return interval_s
        return max(interval_s, _RETRY_S)


T = TypeVar("T")

#: Items per slice. At a few microseconds per item, a slice blocks the loop for 1 to 2 ms.
SLICE = 250


async def slices(items: Sequence[T], size: int = SLICE) -> AsyncIterator[Sequence[T]]:
    """Yield items in slices, and let other tasks of the event loop run between two slices."""
    for start in range(0, len(items), size):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + size]


async def until_first_ends(works: Mapping[str, Coroutine[Any, Any, object]]) -> None:
    """Run coroutines as tasks with these names until one ends; cancel the others. Raises the first error in order."""
    tasks = [asyncio.create_task(work, name=name) for name, work in works.items()]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
