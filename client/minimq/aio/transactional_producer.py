"""The transactional producer for asyncio."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, Unpack, cast

from minimq.administration.resolutions import UNKNOWN, TransactionResolution
from minimq.arguments import check_function, check_iterable
from minimq.connection.cluster import Cluster
from minimq.connection.loop_calls import await_steps
from minimq.options import with_changes
from minimq.sending.interceptor import SendInterceptor
from minimq.sending.producer_options import ProducerChanges, ProducerOptions
from minimq.sending.selectors import Selector
from minimq.sending.transactions.transactional_core import CheckThreads, TransactionalCore
from minimq.sending.transactions.transactional_producer import CheckedFace
from minimq.transport.dropped import WhenDropped
from minimq_common.model import Message, MessageQueue

_JOIN_S = 2.0

#: Returns how the transaction of a half message ended, as far as known; plain or a coroutine function.
AsyncTransactionCheck = Callable[[Message], "TransactionResolution | Awaitable[TransactionResolution]"]


class TransactionalProducer:
    """Sends messages that consumers get if something else commits; see `minimq.TransactionalProducer`.

        async with TransactionalProducer("127.0.0.1:9876", group="shop", check=check) as producer:
            async with producer.transaction() as tx:
                await tx.send(Message("orders", body, keys=("o-17",)))
                await db.commit()

    Not thread-safe: use it on the loop on which it was entered. If `check` is a coroutine function it runs as a task of
    that loop, otherwise on a thread of the producer.
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        group: str,
        check: AsyncTransactionCheck,
        options: ProducerOptions | None = None,
        interceptors: Sequence[SendInterceptor] = (),
        **changes: Unpack[ProducerChanges],
    ) -> None:
        check_function("check", check)
        changed = with_changes(options or ProducerOptions(), changes, TransactionalProducer)
        self._tasks = CheckTasks(check)
        self._core = core = TransactionalCore(nameserver, group, changed, self._tasks.ask, interceptors)
        self._when_dropped = WhenDropped(self, core.release)

    async def __aenter__(self) -> Self:
        self._tasks.loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def group(self) -> str:
        """The producer group."""
        return self._core.group

    def transaction(self, topics: Collection[str] = ()) -> CheckedTransaction:
        """Return a transaction for an `async with` block; see `minimq.TransactionalProducer.transaction`."""
        self._tasks.loop = asyncio.get_running_loop()
        return CheckedTransaction(self._core, self._core.begin(topics))

    async def close(self) -> None:
        """Close. A `check` of the producer group decides on open transactions later. Idempotent."""
        if self._core.is_forked:
            return
        self._when_dropped.closed()
        await asyncio.to_thread(self._release)

    def _release(self) -> None:
        self._core.release()
        self._tasks.threads.close(_JOIN_S)


class CheckedTransaction(CheckedFace):
    """A transaction of a `TransactionalProducer`; ends with its `async with` block."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await await_steps(self._core.leave(self._transaction, error))

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> None:
        """Send a half message and wait until it is on disk; see `minimq.TransactionalProducer`."""
        await await_steps(self._core.send(self._transaction, (message,), queue, selector))

    async def send_many(self, messages: Iterable[Message]) -> None:
        """Send half messages in large batches and wait until all are on disk."""
        given = check_iterable("messages", messages, "messages")
        await await_steps(self._core.send(self._transaction, given, None, None))


class CheckTasks:
    """Runs the check of a user: a coroutine function on the user's loop, a plain one on threads."""

    def __init__(self, check: AsyncTransactionCheck) -> None:
        self._check = call = cast("Callable[[Message], Any]", check)
        self._is_coroutine = inspect.iscoroutinefunction(check)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.threads = CheckThreads(call)  # for a plain function

    async def ask(self, message: Message) -> Any:
        """Return the result of the check for a message. Raises what it raises."""
        if not self._is_coroutine:
            return await self.threads.ask(message)
        if self.loop is None or self.loop.is_closed():
            return UNKNOWN
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._check(message), self.loop))
