"""An asyncio event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from types import CoroutineType
from typing import Any, TypeVar, TypeVarTuple, Unpack

from minimq.connection import fork_guard
from minimq.connection.fork_guard import ForkGuard, is_finalizing, loop_closed, loop_opened
from minimq_common.errors import Closed

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
#: Called once with the outcome of a request: a value, or the error.
OnResult = Callable[[T | None, BaseException | None], object]

log = logging.getLogger(__name__)

CLOSED = "the client was closed"

#: Seconds to wait for gRPC's reports about ended calls; they take milliseconds.
_REPORTED_S = 1.0
#: Seconds between cancellations of a task that does not end.
_RECANCEL_INTERVAL_S = 0.1


class LoopCallQueue:
    """Calls functions on an event loop, with one wake-up for many: a wake-up is a system call. Thread-safe."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[tuple[Context, Callable[..., object], tuple[Any, ...]]] = deque()
        #: Drains of `_calls` so far, and the count for which the loop was woken; equal if a wake-up is pending.
        self._turns = 0
        self._woken = -1

    def call(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call a function on the loop, in the context of the caller. A closed loop drops all calls that are queued."""
        self._calls.append((copy_context(), callback, arguments))
        turns = self._turns
        if self._woken != turns:
            try:
                self.loop.call_soon_threadsafe(self._make_calls)
            except RuntimeError:  # it is closed
                self._calls.clear()
                return
            self._woken = turns  # last: if Ctrl-C comes before, the next call wakes the loop

    def _make_calls(self) -> None:
        self._turns += 1  # first: calls added from here on wake the loop again
        for _ in range(len(self._calls)):
            context, callback, arguments = self._calls.popleft()
            try:
                context.run(callback, *arguments)
            except Exception as error:  # noqa: BLE001 - the other calls must be made
                self.loop.call_exception_handler({"message": f"{callback} failed", "exception": error})


def set_outcome(future: asyncio.Future[T], value: T, error: BaseException | None = None) -> None:
    """Set the outcome of a future unless it is done; on its event loop."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


def answer_of(ask: Callable[[OnResult[T]], object]) -> asyncio.Future[T]:
    """Send a request that reports its answer to a function, and return a future of the answer. On the loop only."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    ask(partial(set_outcome, future))
    return future


async def off_loop(function: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> T:
    """Run code that may block on a thread beside the loop. Raises `Closed` once the process ends."""
    try:
        running = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    except RuntimeError as error:
        if "shutdown" not in str(error):  # there are too many threads now
            raise
        raise Closed("the process ends") from error
    return await running


def on_own_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """Run a call that may hang, such as code of the user, on a thread that ends with the program. On the loop only."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()

    def run() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = call(), None
        except BaseException as error:  # noqa: BLE001 - for the caller, who waits for it
            # A future takes no StopIteration, and a SystemExit would end the loop of all clients.
            is_plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
            outcome = None, error if is_plain else RuntimeError(f"it raised {error!r}")
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(set_outcome, ended, *outcome)

    threading.Thread(target=run, name="minimq-own-thread", daemon=True).start()
    return ended


class LoopThread:
    """An event loop on its own thread, from the first use until `close`. Thread-safe."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.process = ForkGuard()
        #: Protects everything below; held while calls are submitted. Reentrant, for finalizers.
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: LoopCallQueue | None = None
        self._thread: threading.Thread | None = None
        self._ident = 0
        self._stopping = asyncio.Event()
        self._closed = False
        self._at_end: list[Callable[[], object]] = []
        #: Futures for which callers wait, cancelled when the loop ends. Belongs to the loop.
        self.awaited: set[asyncio.Future[Any]] = set()

    @property
    def is_void(self) -> bool:
        """True in a fork of the process that created this: the thread does not exist there."""
        return self.process.is_void

    def check_open(self) -> None:
        """Raise `Closed` after `close`, and in a fork."""
        self.process.check()
        if self._closed:
            raise Closed(CLOSED)

    @property
    def is_loop_thread(self) -> bool:
        return threading.get_ident() == self._ident

    def call_soon(self, callback: Callable[[Unpack[Ts]], object], *arguments: *Ts) -> bool:
        """Schedule a call on the loop. False if the loop is closed: then the call is never made."""
        if self.process.made_in != fork_guard.process_id or is_finalizing():  # `is_void`, without a call
            return False
        if threading.get_ident() == self._ident and self._loop is not None:  # no wake-up needed
            self._loop.call_soon(callback, *arguments)
            return True
        with self._lock:
            if self._closed:
                return False
            (self._calls or self._started()).call(callback, *arguments)
            return True

    def started_loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the loop, started if need be, for a caller that bundles its calls itself; None once it is closed."""
        with self._lock:
            return None if self._closed else (self._calls or self._started()).loop

    def at_end(self, callback: Callable[[], object]) -> None:
        """Call a function on the loop when that ends; by `close` if no loop runs, at once if this is closed already."""
        with self._lock:
            if not self._closed:
                self._at_end.append(callback)
                return
        callback()

    def not_at_end(self, callback: Callable[[], object]) -> None:
        """Remove a function registered with `at_end`."""
        with self._lock:
            if callback in self._at_end:
                self._at_end.remove(callback)

    def close(self) -> None:
        """Cancel all tasks, stop the loop, and join the thread. Idempotent; does nothing in a fork."""
        if self.process.is_void:
            return
        with self._lock:
            self._closed = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stopping.set)
        if self._loop is None:
            self._call_at_end()
        if self._thread is not None and not self.is_loop_thread:
            self._thread.join()

    def _started(self) -> LoopCallQueue:
        loop = _Loop()
        loop.set_exception_handler(_log_failure)
        calls, stopping = LoopCallQueue(loop), asyncio.Event()
        thread = threading.Thread(target=self._run, args=(loop, stopping), name=self._name, daemon=True)
        self._stopping = stopping
        self._loop, self._calls, self._thread = loop, calls, thread  # first: a finalizer may use them
        try:
            thread.start()
            self._ident = thread.ident or 0
        except BaseException:  # no thread, or Ctrl-C: the next use starts another; this one ends if it runs after all
            self._loop = self._calls = self._thread = None
            loop.call_soon_threadsafe(stopping.set)
            raise
        return calls

    def _run(self, loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
        loop_opened()
        try:
            loop.run_until_complete(self._serve(stopping))
        finally:
            self._ident = 0  # the system may reuse it for another thread
            loop.close()
            loop_closed()

    def _call_at_end(self) -> None:
        while self._at_end:
            try:
                self._at_end.pop()()
            except Exception:
                log.exception("client: a callback at the end of a connection failed")

    async def _serve(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        if asyncio.get_running_loop() is self._loop:  # false if its start failed
            self._call_at_end()
        for future in [*self.awaited]:  # not all are tasks
            future.cancel()
        await _cancel(lambda task: isinstance(task.get_coro(), CoroutineType))
        await asyncio.get_running_loop().shutdown_default_executor()
        if asyncio.get_running_loop() is self._loop:
            await self._finish()
        # gRPC's own tasks, which Cython runs, end when it has reported the end of each call. Reports that are not read
        # would keep this loop in memory.
        if tasks := _other_tasks():
            await asyncio.wait(tasks, timeout=_REPORTED_S)
        await _cancel(lambda _: True)

    async def _finish(self) -> None:
        """Close what a subclass has opened, once all tasks have ended."""


def _other_tasks() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def _cancel(is_chosen: Callable[[asyncio.Task[Any]], bool]) -> None:
    while tasks := [*filter(is_chosen, _other_tasks())]:
        for task in tasks:
            task.cancel()
        # A gRPC stream that breaks while it starts can swallow the cancellation of its reader.
        ended, _ = await asyncio.wait(tasks, timeout=_RECANCEL_INTERVAL_S)
        await asyncio.gather(*ended, return_exceptions=True)  # else asyncio logs errors as never retrieved


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that accepts gRPC's callbacks for ended calls even after it was closed.

    gRPC reports the end of a cancelled call later, and offers no way to wait for that. The report may run on any loop
    of the process, so an exception here would be raised in an unrelated loop.
    """

    _calls_at_once = False

    def close(self) -> None:
        """Close the loop, and make gRPC forget it: it keeps each loop while any client of the process is open."""
        self._calls_at_once = True  # first: a report that another thread adds from here on is not lost
        private: Any = self
        for handle in [*private._ready]:
            if getattr(handle._callback, "__module__", "") == "grpc._cython.cygrpc":
                handle._run()
        readers = [] if private._selector is None else [key.data[0] for key in private._selector.get_map().values()]
        super().close()
        for reader in filter(None, readers):
            completion_queue = getattr(getattr(reader._callback, "func", None), "__self__", None)
            for bound_loops in gc.get_referents(completion_queue):
                if isinstance(bound_loops, dict):
                    bound_loops.pop(self, None)

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if not self._calls_at_once:
            return super().call_soon_threadsafe(callback, *args, context=context)
        callback(*args)  # gRPC only frees the resources of the call
        return asyncio.Handle(callback, args, self, context)


def _log_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # Not by the logger of asyncio, whose handlers would run on this loop. Older releases of gRPC wake all loops of a
    # process for each event; all but one then find nothing to read.
    if not isinstance(context.get("exception"), BlockingIOError):
        log.error("client: %s", context["message"], exc_info=context.get("exception"))
