"""Calls between threads and event loops: on the loop of a connection, and on a user's loop."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, TypeVarTuple, Unpack

from minimq.connection.fork_guard import check_may_wait, loop_threads
from minimq.connection.loop_thread import CLOSED, LoopCallQueue
from minimq_common.errors import Closed

if TYPE_CHECKING:
    from minimq.connection.client import ClusterClient

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
#: Called once with the outcome of a call or request: a value, or the error.
OnResult = Callable[[T | None, BaseException | None], object]
#: Sends a request, on the event loop of a connection, and reports its answer to the `OnResult`.
StartRequest = Callable[[OnResult[T]], object]


class Awaited(Generic[T]):
    """An outcome for which one thread waits; unlike a `Future`, safe from Ctrl-C."""

    __slots__ = ("_arrived", "_error", "_value")

    def __init__(self) -> None:
        if threading.get_ident() in loop_threads:  # costs less than the call
            check_may_wait()
        self._arrived = threading.Lock()
        self._arrived.acquire()
        self._value: T | None = None
        self._error: BaseException | None = None

    def complete(self, value: T | None, error: BaseException | None, /) -> None:
        """Set the outcome: a value, or the error."""
        self._value, self._error = value, error
        self._arrived.release()

    def result(self, timeout_s: float = math.inf) -> T:
        """Wait for the value. Raises the error, or `TimeoutError`."""
        if not self._arrived.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
            raise TimeoutError
        if self._error is None:
            return self._value  # type: ignore[return-value]
        try:
            raise self._error
        finally:
            del self._error, self  # breaks the cycle: the traceback of the error holds this frame


def as_coroutine(function: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> Callable[[], Coroutine[Any, Any, T]]:
    """Wrap a non-blocking function as a coroutine function without arguments."""

    async def call() -> T:
        return function(*arguments)

    return call


# ---- work that `minimq` and `minimq.aio` share ------------------------------------------------------
#
# It is written as a coroutine that awaits steps. The coroutine runs on the thread or loop of the caller, its steps on
# the loop of the connection; it gets their results or errors. An interrupted caller abandons only the wait. On the
# loop of the connection, the coroutine is awaited like any other. A `LoopRequest` costs no task there.


class LoopStep(NamedTuple, Generic[T]):
    """A step that runs a coroutine on the event loop of a client's connection."""

    client: ClusterClient
    make: Callable[[], Coroutine[Any, Any, T]]

    def __await__(self) -> Generator[Any, Any, T]:
        if self.client.connection.is_loop_thread:
            return (yield from self.make().__await__())
        result: T = yield self
        return result

    def wait(self) -> T:
        """Run it, and block until it returns."""
        return self.client.wait(self.make)

    async def result(self) -> T:
        """Like `wait`, for a task of another loop."""
        return await self.client.result(self.make)


class LoopRequest(NamedTuple, Generic[T]):
    """A step that sends one request on the event loop of a client's connection; cheaper than a `LoopStep`."""

    client: ClusterClient
    ask: StartRequest[T]
    limit_s: float = math.inf

    def __await__(self) -> Generator[Any, Any, T]:
        if self.client.connection.is_loop_thread:
            return (yield from answer_of(self.ask, self.limit_s).__await__())
        answer: T = yield self
        return answer

    def wait(self) -> T:
        """Send it, and block until the answer arrives."""
        awaited: Awaited[T] = Awaited()
        self._begin(awaited.complete)
        return awaited.result(self.limit_s)

    async def result(self) -> T:
        """Like `wait`, for a task of another loop."""
        loop = self.client.user_loop()
        return await answer_of(lambda take: self._begin(partial(loop.call, take)), self.limit_s)

    def _begin(self, take: OnResult[T]) -> None:
        if not self.client.connection.call_soon(_ask, self.ask, take):
            raise Closed(CLOSED)


def _ask(ask: StartRequest[T], take: OnResult[T]) -> None:
    try:
        ask(take)
    except BaseException as error:  # noqa: BLE001 - the caller must get it, or waits forever
        take(None, error)


async def answer_of(ask: StartRequest[T], limit_s: float = math.inf) -> T:
    """Send a request from the running event loop, and return its answer."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[T] = loop.create_future()
    take = partial(resolve, arrived)
    timer = None if limit_s == math.inf else loop.call_later(limit_s, take, None, TimeoutError())
    try:
        ask(take)
        return await arrived
    finally:
        if timer is not None:
            timer.cancel()


def resolve(future: asyncio.Future[T] | Future[T], value: T | None, error: BaseException | None) -> None:
    """Set the outcome of a future unless it is done; on its event loop."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)  # type: ignore[arg-type]


#: Messages to process between two `YieldToLoop`s.
PER_TURN = 1000


class YieldToLoop:
    """A step that lets other tasks of the event loop run, in the middle of long work."""

    def __await__(self) -> Generator[None, Any, None]:
        yield  # like `asyncio.sleep(0)`


def run_steps(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine that awaits steps on this thread; block in each step."""
    if threading.get_ident() in loop_threads:
        check_may_wait()
    steps = make()  # created here, so that Ctrl-C comes before that or once it runs
    result: Any = None
    failure: BaseException | None = None
    while True:
        try:
            while True:
                step = steps.send(result) if failure is None else steps.throw(failure)
                failure = result = None
                if step is not None:
                    result = step.wait()
        except StopIteration as end:
            value: T = end.value
            return value
        except BaseException as error:
            if inspect.getcoroutinestate(steps) == inspect.CORO_CLOSED:
                failure = None  # breaks the cycle: its traceback holds this frame
                raise
            failure = error  # the coroutine decides what follows, even after Ctrl-C between two steps


async def await_steps(steps: Coroutine[Any, Any, T]) -> T:
    """Like `run_steps`, for a task of a user's loop."""
    result: Any = None
    failure: BaseException | None = None
    try:
        while True:
            step = steps.send(result) if failure is None else steps.throw(failure)
            result = failure = None
            try:
                result = await (asyncio.sleep(0) if step is None else step.result())
            except BaseException as error:  # noqa: BLE001 - the coroutine decides what follows
                failure = error
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        failure = None  # breaks the cycle: its traceback holds this frame


# ---- calls on the event loop of a user ----------------------------------------------------------------


class LoopOutcome(Generic[T]):
    """An outcome that any thread sets, and a task of a user's loop awaits as `future`."""

    __slots__ = ("_loop", "future")

    def __init__(self, loop: LoopCallQueue) -> None:
        self._loop = loop
        self.future: asyncio.Future[T] = loop.loop.create_future()

    def complete(self, value: T | None, error: BaseException | None, /) -> None:
        """Set the outcome: a value, or the error."""
        if not self.future.cancelled():
            self._loop.call(resolve, self.future, value, error)
