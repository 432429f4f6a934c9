"""Calls across event loops and threads: those that run on the loop of a connection, and those on a user's loop."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, TypeVarTuple, Unpack, cast

from minimq.connection.loop_thread import CLOSED
from minimq.transport.home_process import check_no_finalizer
from minimq_common.errors import Closed

if TYPE_CHECKING:
    from minimq.connection.client import ClusterClient

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Outcome(NamedTuple, Generic[T]):
    """The result of a call, or its error."""

    value: T | None
    error: BaseException | None

    def result(self) -> T:
        """Return or raise it."""
        if self.error is not None:
            raise self.error
        return cast("T", self.value)


class LoopCall(Generic[T]):
    """A coroutine of a client on the event loop of its connection, which reports its end to the caller that waits.

    Ctrl-C may come anywhere in a thread that waits. So it shares no lock with the loop, as it would with a
    `concurrent.futures.Future`: an exception between the lock and its `with` block would leave the lock taken.
    """

    def __init__(
        self, client: ClusterClient, make: Callable[[], Coroutine[Any, Any, T]], over: Callable[[Outcome[T]], object]
    ) -> None:
        self._client = client
        self._make = make
        self._over = over
        self._task: asyncio.Task[T] | None = None  # belongs to the loop

    def begin(self) -> None:
        """Begin. Raises `Closed`."""
        self._client.check_open()
        check_no_finalizer()
        if not self._client.connection.call_soon(self._begin):
            raise Closed(CLOSED)

    def cancel(self) -> None:
        """End the coroutine. Does not wait for that."""
        self._client.connection.call_soon(self.cancel_now)

    def cancel_now(self) -> None:
        """Do as `cancel`, on the loop."""
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
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
            self._over(Outcome(None, Closed(f"{CLOSED} while a call was under way")))
        elif (error := task.exception()) is not None:
            self._over(Outcome(None, error))
        else:
            self._over(Outcome(task.result(), None))


def as_coroutine(function: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> Callable[[], Coroutine[Any, Any, T]]:
    """Return a maker of a coroutine that calls a function, which must not block."""

    async def call() -> T:
        return function(*arguments)

    return call


# ---- work that both faces of a client share ----------------------------------------------------------
#
# It is a coroutine that awaits steps, and runs where the caller is, but for the steps: it gets the result of each, or
# its error. Whoever is interrupted abandons the wait alone. On the connection's own loop it is awaited like any other.


class LoopStep(NamedTuple, Generic[T]):
    """A coroutine, and the client on whose event loop it is to run; awaited for its result."""

    client: ClusterClient
    make: Callable[[], Coroutine[Any, Any, T]]

    def __await__(self) -> Generator[Any, Any, T]:
        if self.client.connection.is_loop_thread:
            return (yield from self.make().__await__())
        result: T = yield self
        return result


class Turn:
    """Lets others of the same event loop run, amid what takes long; awaited."""

    def __await__(self) -> Generator[None, Any, None]:
        yield  # as `asyncio.sleep(0)`


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield items, with a `Turn` after each thousand."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % 1000:
            await Turn()


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
                    result = step.client.wait(step.make)
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
                result = await (asyncio.sleep(0) if step is None else step.client.result(step.make))
            except BaseException as error:  # noqa: BLE001 - it decides what follows
                failure = error
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        failure = None  # whose traceback has this frame


# ---- calls on the event loop of a user ----------------------------------------------------------------


class UserLoop:
    """Makes calls on one event loop; those that gather are made together. Thread-safe."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        #: The loop has been woken, which costs a system call, and has not looked yet.
        self._is_woken = False

    def call(self, function: Callable[[], object]) -> None:
        """Have a function called, which must not raise; never, if the loop is closed, and with it all who waited."""
        self._calls.append(function)
        if not self._is_woken:
            self._is_woken = True
            try:
                self.loop.call_soon_threadsafe(self._make_calls)
            except RuntimeError:  # it is closed
                self._is_woken = False
                self._calls.clear()

    def _make_calls(self) -> None:
        self._is_woken = False  # first: whoever adds one from here on wakes the loop again
        for _ in range(len(self._calls)):
            self._calls.popleft()()


class LoopOutcome(Generic[T]):
    """One outcome: set by any thread, awaited on the loop through `future`."""

    __slots__ = ("_error", "_loop", "_value", "future")

    def __init__(self, loop: UserLoop) -> None:
        self._loop = loop
        self.future: asyncio.Future[T] = loop.loop.create_future()

    def complete(self, value: T | None, error: BaseException | None, /) -> None:
        """Take the value, or the reason why there is none."""
        if not self.future.cancelled():
            self._value, self._error = value, error
            self._loop.call(self._resolve)

    def _resolve(self) -> None:
        if self.future.done():  # it was cancelled
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        elif self._value is not None:
            self.future.set_result(self._value)
