"""A transaction of an asyncio producer, as an `async with` block."""

from __future__ import annotations

from types import TracebackType
from typing import Self, TypeVar

from minimq.connection.loop_steps import await_steps
from minimq.sending.transactions.producer_transaction import TransactionFace

M = TypeVar("M")


class ProducerTransaction(TransactionFace[M]):
    """Messages that consumers see all together, or none of them; see `minimq.Producer.transaction`.

    A task that is cancelled while its block ends takes nothing back: the commit goes on, and its outcome is not told.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await await_steps(self._opened.leave(error), is_quick=self._opened.is_quick)

    async def receive(self, timeout: float = 1.0, max_messages: int = 4096) -> list[M]:
        """Receive messages from the consumer of the transaction, once; as in `minimq`."""
        source = self._opened.begin_receiving()
        return source.took(await source.receive(timeout, max_messages))

    async def rollback(self) -> None:
        """Send nothing; the messages of the consumer are delivered again. The rest of the block may go on."""
        await await_steps(self._opened.roll_back(), is_quick=True)
