"""The transactional producer for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from types import TracebackType
from typing import Self

from minimq.arguments import check_iterable
from minimq.connection.finalizers import ClosedByAsyncWith
from minimq.features.half_messages.resolutions import TransactionResolution
from minimq.features.half_messages.transactional_producer import BaseCheckedTransaction, BaseTransactionalProducer
from minimq.sending.selectors import Selector
from minimq_common.model import Message, MessageQueue

#: Returns how the transaction of a half message ended, as far as known; plain or a coroutine function.
AsyncTransactionCheck = Callable[[Message], "TransactionResolution | Awaitable[TransactionResolution]"]


class TransactionalProducer(ClosedByAsyncWith, BaseTransactionalProducer[AsyncTransactionCheck]):
    """Sends messages that consumers get if something else commits; see `minimq.TransactionalProducer`.

        async with TransactionalProducer("127.0.0.1:9876", group="shop", check=check) as producer:
            async with producer.transaction() as tx:
                await tx.send(Message("orders", body, keys=("o-17",)))
                await db.commit()

    Not thread-safe: use it on the loop on which it was entered. If `check` is a coroutine function it runs as a task of
    that loop, otherwise on a thread of the producer.
    """

    _awaits = True

    async def __aenter__(self) -> Self:
        self._core.check.loop = asyncio.get_running_loop()
        return self

    def transaction(self, topics: Collection[str] = ()) -> CheckedTransaction:
        """Return a transaction for an `async with` block; see `minimq.TransactionalProducer.transaction`."""
        self._core.check.loop = asyncio.get_running_loop()
        return CheckedTransaction(self._core, self._core.begin(topics))

    async def close(self) -> None:
        """Close. A `check` of the producer group decides on open transactions later. Idempotent."""
        if self._finalizer.detach():
            await asyncio.to_thread(self._core.release)


class CheckedTransaction(BaseCheckedTransaction):
    """A transaction of a `TransactionalProducer`; ends with its `async with` block."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._core.leave_async(self._transaction, error)

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> None:
        """Send a half message and wait until it is on disk; see `minimq.TransactionalProducer`."""
        items = self._core.accept(self._transaction, (message,), queue, selector)
        await self._core.send_async(self._transaction, items)

    async def send_many(self, messages: Iterable[Message]) -> None:
        """Send half messages in large batches and wait until all are on disk."""
        given = check_iterable("messages", messages, "messages")
        items = await asyncio.to_thread(self._core.accept, self._transaction, given)
        await self._core.send_async(self._transaction, items)
