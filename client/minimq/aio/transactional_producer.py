"""The transactional producer for asyncio."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, Unpack, cast

from minimq.administration.resolutions import COMMIT, ROLLBACK, UNKNOWN, TransactionResolution
from minimq.aio.outcomes import LoopOutcomes
from minimq.arguments import check_function, check_iterable
from minimq.connection.cluster import Cluster
from minimq.options import with_changes
from minimq.sending.check_back import CheckThreads, Resolved
from minimq.sending.half_transaction import HalfTransaction
from minimq.sending.interceptor import SendInterceptor
from minimq.sending.producer_options import ProducerChanges, ProducerOptions
from minimq.sending.selectors import Selector
from minimq.sending.transactional_core import TransactionalCore
from minimq.transport.client_log import client_logger
from minimq.transport.dropped import WhenDropped
from minimq_common.errors import MiniMQError
from minimq_common.model import Message, MessageQueue

log = client_logger(__name__)

#: Messages of that size in all are encoded on another thread.
_LARGE_BYTES = 1 << 17
_JOIN_S = 2.0

#: Says how the transaction of a message ended, as far as that is known; a coroutine function may be one.
AsyncTransactionCheck = Callable[[Message], "TransactionResolution | Awaitable[TransactionResolution]"]


class TransactionalProducer:
    """Sends messages that consumers get if something else commits; see `minimq.TransactionalProducer`.

        async with TransactionalProducer("127.0.0.1:9876", group="shop", check=check) as producer:
            async with producer.transaction() as tx:
                await tx.send(Message("orders", body, keys=("o-17",)))
                await db.commit()

    Not thread-safe: the loop on which it was entered uses it. A `check` that is a coroutine function runs as a task of
    that loop, a plain one on a thread of the producer.
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
        self._outcomes: LoopOutcomes | None = None
        self._when_dropped = WhenDropped(self, core.release)

    async def __aenter__(self) -> Self:
        self._home()
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
        """Return a new transaction, for an `async with` block; see `minimq.TransactionalProducer.transaction`."""
        return CheckedTransaction(self._core, self._core.begin(topics), self._home())

    async def close(self) -> None:
        """End. The check decides on transactions that have not ended. Idempotent."""
        if self._core.is_forked:
            return
        self._when_dropped.closed()
        self._tasks.cancel()
        await asyncio.to_thread(self._release)

    def _release(self) -> None:
        self._core.release()
        self._tasks.threads.close(_JOIN_S)

    def _home(self) -> LoopOutcomes:
        loop = asyncio.get_running_loop()
        if self._outcomes is None or self._outcomes.loop is not loop:
            self._outcomes = LoopOutcomes(loop)
            self._tasks.loop = loop
        return self._outcomes


class CheckedTransaction:
    """A transaction of a `TransactionalProducer`; ends with its `async with` block."""

    def __init__(self, core: TransactionalCore, transaction: HalfTransaction, outcomes: LoopOutcomes) -> None:
        self._core = core
        self._transaction = transaction
        self._outcomes = outcomes

    @property
    def number(self) -> int:
        """Its number, by which tools name it."""
        return self._transaction.number

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        transaction = self._transaction
        if error is not None:
            transaction.fail()
        if not transaction.must_roll_back:
            await self._commit()
            return
        failure = transaction.failure
        await self._roll_back()
        if error is None and failure is not None:
            raise transaction.failed()

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> None:
        """Send a half message, and wait until it is on disk; see `minimq.TransactionalProducer`."""
        await self._send((message,), queue, selector)

    async def send_many(self, messages: Iterable[Message]) -> None:
        """Send half messages in large batches, and wait until all are on disk."""
        await self._send([*check_iterable("messages", messages, "messages")], None, None)

    def rollback(self) -> None:
        """Have the transaction rolled back at the end of the block, without an error."""
        self._transaction.fail()

    async def _send(self, messages: Sequence[Message], queue: MessageQueue | None, selector: Selector | None) -> None:
        core, transaction = self._core, self._transaction
        transaction.check_open()
        await core.find(transaction, messages)
        if sum(len(message.body) for message in messages) >= _LARGE_BYTES:
            batches = await asyncio.to_thread(core.prepare, transaction, messages, queue, selector)
        else:
            batches = core.prepare(transaction, messages, queue, selector)
        sent: list[asyncio.Future[Any]] = []
        try:
            for batch in batches:
                outcome = self._outcomes.new_answer()
                core.stage(transaction, batch, outcome)
                sent.append(outcome.future)
            for future in sent:
                await future
        except MiniMQError as error:
            transaction.fail(error)
            core.avoid(transaction.broker_name)
            core.not_stored(batches, error)
            raise
        except BaseException as error:  # it was cancelled: nobody knows what is stored
            transaction.fail()
            core.not_stored(batches, error)
            raise
        transaction.batches += len(sent)
        core.stored(batches)

    async def _commit(self) -> None:
        core, transaction = self._core, self._transaction
        outcome = self._outcomes.new_answer()
        try:
            if core.end(transaction, COMMIT, outcome):
                transaction.check_committed(await outcome.future)
        except MiniMQError as error:
            raise transaction.not_committed(error) from None
        finally:
            core.left(transaction)

    async def _roll_back(self) -> None:
        core, transaction = self._core, self._transaction
        outcome = self._outcomes.new_answer()
        try:
            if core.end(transaction, ROLLBACK, outcome):
                transaction.check_rolled_back(await outcome.future)
        except MiniMQError as error:
            log.warning("producer: %s is not rolled back yet, its check decides error=%s", transaction, error.message)
        finally:
            core.left(transaction)


class CheckTasks:
    """Calls a check: a coroutine function in tasks of the loop of the user, a plain one on threads."""

    def __init__(self, check: AsyncTransactionCheck) -> None:
        self._check = call = cast("Callable[[Message], Any]", check)
        self._is_coroutine = inspect.iscoroutinefunction(check)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.threads = CheckThreads(call)  # used if it is a plain one
        self._running: set[asyncio.Task[None]] = set()

    def ask(self, message: Message, resolved: Resolved) -> None:
        """Call it with a message, and hand on what it returns or raises. Returns at once."""
        if not self._is_coroutine:
            self.threads.ask(message, resolved)
            return
        try:
            if self.loop is None:
                resolved(UNKNOWN)
            else:
                self.loop.call_soon_threadsafe(self._begin, message, resolved)
        except RuntimeError:  # the loop is closed
            resolved(UNKNOWN)

    def _begin(self, message: Message, resolved: Resolved) -> None:
        task = asyncio.create_task(self._call(message, resolved), name="minimq-check")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _call(self, message: Message, resolved: Resolved) -> None:
        answer: Any = UNKNOWN
        try:
            answer = await self._check(message)
        except Exception as error:  # noqa: BLE001 - it may raise anything
            answer = error
        finally:
            resolved(answer)

    def cancel(self) -> None:
        """End the tasks that run; on the loop."""
        for task in self._running:
            task.cancel()
