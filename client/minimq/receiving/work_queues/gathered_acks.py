"""Acknowledgements that nobody waits for one by one: those of many calls go together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

from minimq.connection.connection import Connection
from minimq.connection.loop_thread import CLOSED
from minimq.receiving.work_queues.popped import Receipts, united
from minimq.sending.callback_thread import CallbackThread
from minimq_common.errors import Closed, MiniMQError

#: While others are under way, acknowledgements are gathered for so long, in seconds, or until there are so many.
_GATHER_S = 0.02
_MOST = 16


class _AckFuture(Future[None]):
    """Calls back on a thread of its own: the event loop that completes it must not run the code of users."""

    def __init__(self, callbacks: CallbackThread) -> None:
        super().__init__()
        self._callback_thread = callbacks

    def _invoke_callbacks(self) -> None:
        if self._done_callbacks:  # type: ignore[attr-defined]
            self._callback_thread.run(super()._invoke_callbacks)  # type: ignore[misc]


class _Acknowledgement(NamedTuple):
    """Messages to acknowledge, and the future by which somebody is told."""

    receipts: Receipts
    told: Future[None]


class GatheredAcks:
    """Acknowledges the messages of many calls at once. Thread-safe.

    What comes first goes at once; what comes while that is under way goes together a moment later. So small calls cost
    little, and who waits for each one before the next does not wait for others.
    """

    def __init__(self, connection: Connection, settle: Callable[[Receipts], Awaitable[None]]) -> None:
        self._connection = connection
        self._settle = settle
        self._callbacks = CallbackThread("minimq-ack-callbacks")
        self._lock = threading.Lock()  # protects what follows; held for moments
        self._waiting: list[_Acknowledgement] = []
        self._is_gathering = False
        self._under_way = 0
        # What follows belongs to the event loop.
        self._at_once = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, receipts: Receipts) -> Future[None]:
        """Acknowledge messages; return a future that is done when that is on disk. Raises `Closed`."""
        told = _AckFuture(self._callbacks)
        with self._lock:
            if not self._is_gathering:
                self._is_gathering = self._connection.call_soon(self._begin, bool(self._under_way))
                if not self._is_gathering:
                    raise Closed(CLOSED)
            self._waiting.append(_Acknowledgement(receipts, told))
            if len(self._waiting) == _MOST:
                self._connection.call_soon(self._at_once.set)
        return told

    # ---- on the event loop -------------------------------------------------------------------------

    async def hurry(self) -> None:
        """Let acknowledgements that are gathered go with what the caller is about to send."""
        if self._is_gathering:
            self._at_once.set()
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Send what is gathered, and wait until all is answered."""
        try:
            await self.hurry()
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            self._callbacks.close(0)

    def _begin(self, gathers: bool) -> None:
        self._at_once.clear()
        task = asyncio.create_task(self._send(gathers))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, gathers: bool) -> None:
        """Gather acknowledgements, if others are under way, and send them: those of each broker by themselves.

        So nobody waits for a broker that is away, or is told of its error, whose messages are of another one.
        """
        parts: list[list[_Acknowledgement]] = []
        try:
            try:
                if gathers:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_GATHER_S):
                            await self._at_once.wait()
            finally:
                parts = self._gathered()
            if len(parts) == 1:  # at once: it goes with what a caller of `hurry` sends next
                await self._acknowledge(parts[0])
            else:
                await asyncio.gather(*map(self._acknowledge, parts))
        finally:
            for part in parts:
                _tell(part, [Closed(CLOSED) for _ in part])  # of a task that was cancelled before it began

    async def _acknowledge(self, part: Sequence[_Acknowledgement]) -> None:
        errors: Sequence[Exception | None] = [Closed(CLOSED) for _ in part]
        try:
            errors = await self._errors([item.receipts for item in part])
        finally:
            with self._lock:
                self._under_way -= 1  # first: whoever is told may call again
            _tell(part, errors)

    def _gathered(self) -> list[list[_Acknowledgement]]:
        parts: dict[frozenset[str], list[_Acknowledgement]] = {}
        with self._lock:
            waiting, self._waiting = self._waiting, []
            for item in waiting:
                if item.told.set_running_or_notify_cancel():
                    brokers = frozenset(queue.broker_name for queue, _ in item.receipts)
                    parts.setdefault(brokers, []).append(item)
            self._is_gathering = False
            self._under_way += len(parts)
        return [*parts.values()]

    async def _errors(self, parts: Sequence[Receipts]) -> Sequence[Exception | None]:
        try:
            await self._settle(united(parts))
        except MiniMQError as error:
            if len(parts) > 1 and error.answered:  # to one of them, perhaps: each hears what is true of its own
                return [error for [error] in await asyncio.gather(*(self._errors([part]) for part in parts))]
            return [error] * len(parts)
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits must hear of it
            return [error] * len(parts)
        return [None] * len(parts)


def _tell(part: Sequence[_Acknowledgement], errors: Sequence[Exception | None]) -> None:
    for item, error in zip(part, errors, strict=True):
        if item.told.done():
            continue
        if error is None:
            item.told.set_result(None)
        else:
            item.told.set_exception(error)
