"""Threads or tasks that call a listener, fed from the event loop of the connection."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

Delivery = TypeVar("Delivery")


class ListenerThreads(Generic[Delivery]):
    """A pool of threads that take deliveries from a queue; each of the first `count` deliveries starts one."""

    #: Threads run until `close`.
    has_ended = False

    def __init__(self, count: int, deliver: Callable[[Delivery], None], name: str) -> None:
        self._count = count
        self._deliver = deliver
        self._name = name
        self._to_do: queue.SimpleQueue[Delivery | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def add(self, delivery: Delivery) -> None:
        self._to_do.put(delivery)
        self._grow()

    def tick(self, now: float) -> None:
        """Try again to start a thread that the system had no room for. Call it periodically."""
        if not self._to_do.empty():
            self._grow()

    def _grow(self) -> None:
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)  # first: `is_mine` must know it
            try:
                thread.start()
            except RuntimeError as error:
                self._threads.pop()
                log.warning("consumer: cannot start a thread for the listener, will try again error=%s", error)

    def flush(self) -> None:
        """Do nothing: `add` wakes a thread."""

    def withdraw(self) -> list[Delivery]:
        """Remove and return the deliveries that no thread has started."""
        found: list[Delivery] = []
        with suppress(queue.Empty):
            while (delivery := self._to_do.get_nowait()) is not None:
                found.append(delivery)
        return found

    def close(self) -> None:
        """End each thread after its current delivery; drop pending deliveries."""
        self.withdraw()
        for _ in range(self._count):
            self._to_do.put(None)

    def is_mine(self) -> bool:
        """Return whether the caller is one of these threads."""
        return threading.current_thread() in self._threads

    def _run(self) -> None:
        while (delivery := self._to_do.get()) is not None:
            try:
                self._deliver(delivery)
            except BaseException:
                log.exception("consumer: failed to make a call of the listener")


#: A loop that ends cancels its tasks and is closed within this time.
_CLOSED_WITHIN_S = 1.0


class ListenerTasks(Generic[Delivery]):
    """Tasks on the user's event loop, at most `count`, that end when there is no more work."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        count: int,
        deliver: Callable[[Delivery], Awaitable[None]],
        cut_off: Callable[[Delivery], None],
    ) -> None:
        self._loop = loop
        self._count = count
        self._deliver = deliver
        self._on_cancelled = cut_off
        #: The context of the caller of `start`, as for any task created there.
        self._context = contextvars.copy_context()
        self._to_do: deque[Delivery] = deque()
        #: The loop was woken and has not read the deliveries yet.
        self._is_woken = False
        self._tasks: set[asyncio.Task[None]] = set()  # belongs to the loop
        #: Deliveries that were cancelled, by the user or the end of the loop, and when.
        self._cancelled: deque[tuple[Delivery, float]] = deque()

    @property
    def has_ended(self) -> bool:
        """True if the loop is closed, so that the listener can no longer run."""
        return self._loop.is_closed()

    def add(self, delivery: Delivery) -> None:
        """Schedule a delivery for the next `flush`: waking a loop costs as much as a small delivery."""
        self._to_do.append(delivery)

    def flush(self) -> None:
        """Wake the loop if there is work."""
        if self._to_do and not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed, which `has_ended` reports
                self._loop.call_soon_threadsafe(self._begin_tasks)

    def tick(self, now: float) -> None:
        """Report deliveries that were cancelled although the loop still runs. Call it periodically."""
        while self._cancelled and not self.has_ended and now >= self._cancelled[0][1] + _CLOSED_WITHIN_S:
            self._on_cancelled(self._cancelled.popleft()[0])

    def withdraw(self) -> list[Delivery]:
        """Remove and return the deliveries that no task has started."""
        found: list[Delivery] = []
        with suppress(IndexError):  # a task may take the last one
            while True:
                found.append(self._to_do.popleft())
        return found

    def close(self) -> None:
        """End each task after its current delivery; drop pending deliveries."""
        self._to_do.clear()

    def is_mine(self) -> bool:
        try:
            return asyncio.current_task() in self._tasks
        except RuntimeError:  # no loop runs in this thread
            return False

    def _begin_tasks(self) -> None:
        self._is_woken = False  # first: a delivery that is added from here on wakes the loop again
        for _ in range(min(len(self._to_do), self._count - len(self._tasks))):
            task = self._loop.create_task(self._run(), context=self._context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved: the loop raises an error that ends the program, so asyncio need not log it

    async def _run(self) -> None:
        while True:
            try:
                delivery = self._to_do.popleft()
            except IndexError:  # withdrawn meanwhile, or none is left
                return
            try:
                await self._deliver(delivery)
            except asyncio.CancelledError:
                self._cancelled.append((delivery, time.monotonic()))
                raise
            except Exception:
                log.exception("consumer: failed to make a call of the listener")
