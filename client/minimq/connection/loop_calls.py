"""Calls across event loops and threads: those that run on the loop of a connection, and those on a user's loop."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, TypeVarTuple, Unpack

from minimq.connection.loop_thread import CLOSED, LoopCallQueue
from minimq.transport.home_process import check_may_wait, loop_threads
from minimq_common.errors import Closed

if TYPE_CHECKING:
    from minimq.connection.client import ClusterClient

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
#: Told the outcome of a call or a request once: a value, or the error.
Take = Callable[[T | None, BaseException | None], object]
#: Makes a request on the event loop of a connection.
Ask = Callable[[Take[T]], object]


class Awaited(Generic[T]):
    """The outcome for which one thread waits at once."""

    __slots__ = ("_arrived", "_error", "_value")

    def __init__(self) -> None:
        if threading.get_ident() in loop_threads:
            check_may_wait()
        self._arrived = threading.Lock()
        self._arrived.acquire()
        self._value: T | None = None
        self._error: BaseException | None = None

    def complete(self, value: T | None, error: BaseException | None, /) -> None:
        """Process the outcome: a value, or the error."""
        self._value, self._error = value, error
        self._arrived.release()

    def result(self, timeout_s: float = math.inf) -> T:
        """Wait; return the value, or raise the error; or `TimeoutError`."""
        if not self._arrived.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
            raise TimeoutError
        if self._error is None:
            return self._value  # type: ignore[return-value]
        try:
            raise self._error
        finally:
            del self._error, self  # whose traceback holds this frame


class LoopCall(Generic[T]):
    """A coroutine of a client on the event loop of its connection, which reports its end to its caller.

    Ctrl-C may come anywhere in a thread that waits. So no lock is held in turns with the loop, as in a
    `concurrent.futures.Future`: an exception between the lock and its `with` block would leave the lock taken.
    """

    _over: Take[T]
    _task: asyncio.Task[T] | None = None  # belongs to the loop

    def __init__(self, client: ClusterClient, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._client = client
        self._make = make

    def cancel(self) -> None:
        """End the coroutine. Does not wait for that."""
        self._client.connection.call_soon(self.cancel_now)

    def cancel_now(self) -> None:
        """Do as `cancel`, on the loop."""
        if self._task is not None:
            self._task.cancel()

    def begin(self, over: Take[T]) -> None:
        """Begin, on the loop; tell the end to a function."""
        self._over = over
        self._client.under_way.add(self)
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._end)
        if self._client.is_closed:  # since it was begun
            self._task.cancel()

    async def _run(self) -> T:
        return await self._make()  # whatever that raises is told, and leaves nobody waiting

    def _end(self, task: asyncio.Task[T]) -> None:
        # Here, and not at the end of the coroutine: who has dropped the client by then must be the last to have it.
        self._client.under_way.discard(self)
        if task.cancelled():  # perhaps before its first step
            self._over(None, Closed(f"{CLOSED} while a call was under way"))
        elif (error := task.exception()) is not None:
            self._over(None, error)
        else:
            self._over(task.result(), None)


def as_coroutine(function: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> Callable[[], Coroutine[Any, Any, T]]:
    """Return a maker of a coroutine that calls a function, which must not block."""

    async def call() -> T:
        return function(*arguments)

    return call


# ---- work that both faces of a client share ----------------------------------------------------------
#
# It is a coroutine that awaits steps, and runs where the caller is, but for the steps: it gets the result of each, or
# its error. Whoever is interrupted abandons the wait alone. On the connection's own loop it is awaited like any other.
# A step that is one request takes no task there, and no more of the loop's time than the request and its answer.


class LoopStep(NamedTuple, Generic[T]):
    """A coroutine, and the client on whose event loop it is to run; awaited for its result."""

    client: ClusterClient
    make: Callable[[], Coroutine[Any, Any, T]]

    def __await__(self) -> Generator[Any, Any, T]:
        if self.client.connection.is_loop_thread:
            return (yield from self.make().__await__())
        result: T = yield self
        return result

    def wait(self) -> T:
        """Run it, and return its result; waits."""
        return self.client.wait(self.make)

    async def result(self) -> T:
        """Do as `wait`, and suspend a task instead."""
        return await self.client.result(self.make)


class LoopRequest(NamedTuple, Generic[T]):
    """A request that is made on the event loop of a client's connection; awaited for its answer as a `LoopStep`.

    Raises `TimeoutError` if that takes too long. The answer to an abandoned one is dropped.
    """

    client: ClusterClient
    ask: Ask[T]
    limit_s: float = math.inf

    def __await__(self) -> Generator[Any, Any, T]:
        if self.client.connection.is_loop_thread:
            return (yield from answer_of(self.ask, self.limit_s).__await__())
        answer: T = yield self
        return answer

    def wait(self) -> T:
        """Make it, and return the answer; waits."""
        awaited: Awaited[T] = Awaited()
        self._begin(awaited.complete)
        return awaited.result(self.limit_s)

    async def result(self) -> T:
        """Do as `wait`, and suspend a task instead."""
        loop = self.client.user_loop()
        return await answer_of(lambda take: self._begin(partial(loop.call, take)), self.limit_s)

    def _begin(self, take: Take[T]) -> None:
        if not self.client.connection.call_soon(_ask, self.ask, take):
            raise Closed(CLOSED)


def _ask(ask: Ask[T], take: Take[T]) -> None:
    try:
        ask(take)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the caller gets it, and waits no longer
        take(None, error)


async def answer_of(ask: Ask[T], limit_s: float = math.inf) -> T:
    """Make a request on the present event loop, and return its answer."""
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
    """Set the outcome of a future that is not done; on its event loop."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)  # type: ignore[arg-type]


#: Messages that are handled in one `Turn`.
PER_TURN = 1000


class Turn:
    """Lets others of the same event loop run, amid what takes long; awaited."""

    def __await__(self) -> Generator[None, Any, None]:
        yield  # as `asyncio.sleep(0)`


def run_steps(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run all steps, and return the result; waits."""
    steps = make()  # here: Ctrl-C comes before it is made, or once it runs
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
                failure = None  # whose traceback has this frame
                raise
            failure = error  # it decides what follows, also if Ctrl-C came here, between two steps


async def await_steps(steps: Coroutine[Any, Any, T]) -> T:
    """Do as `run_steps`, and suspend a task instead."""
    result: Any = None
    failure: BaseException | None = None
    try:
        while True:
            step = steps.send(result) if failure is None else steps.throw(failure)
            result = failure = None
            try:
                result = await (asyncio.sleep(0) if step is None else step.result())
            except BaseException as error:  # noqa: BLE001 - it decides what follows
                failure = error
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        failure = None  # whose traceback has this frame


# ---- calls on the event loop of a user ----------------------------------------------------------------


class LoopOutcome(Generic[T]):
    """One outcome: set by any thread, awaited on the loop through `future`."""

    __slots__ = ("_loop", "future")

    def __init__(self, loop: LoopCallQueue) -> None:
        self._loop = loop
        self.future: asyncio.Future[T] = loop.loop.create_future()

    def complete(self, value: T | None, error: BaseException | None, /) -> None:
        """Take the value, or the reason why there is none."""
        if not self.future.cancelled():
            self._loop.call(resolve, self.future, value, error)
