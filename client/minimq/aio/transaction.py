"""A transaction of an asyncio producer, as an `async with` block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from minimq.aio.outcomes import LoopOutcomes
from minimq.sending.open_transaction import OpenTransaction
from minimq.sending.receipt import SendReceipt
from minimq.sending.selectors import Selector
from minimq.sending.transactor import LoopStep
from minimq_common.model import Message, MessageQueue

M = TypeVar("M")


class ProducerTransaction(Generic[M]):
    """Messages that consumers see all together, or none of them; see `minimq.Producer.transaction`.

    A task that is cancelled while its block ends takes nothing back: the commit goes on, and its outcome is not told.
    """

    def __init__(self, opened: OpenTransaction[M], outcomes: LoopOutcomes) -> None:
        self._opened = opened
        self._outcomes = outcomes

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if not self._opened.is_open:
            return
        if error is None:
            await self._run(self._opened.commit)
        else:
            await self._run(self._opened.roll_back)

    def send(self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None) -> None:
        """Add a message, which is sent at the end of the block: there is nothing to await."""
        self._opened.send(message, queue, selector)

    async def receive(self, timeout: float = 1.0, max_messages: int = 4096) -> list[M]:
        """Receive messages from the consumer of the transaction, once; as in `minimq`."""
        source = self._opened.begin_receiving()
        return source.took(await source.receive(timeout, max_messages))

    async def rollback(self) -> None:
        """Send nothing; the messages of the consumer are delivered again. The rest of the block may go on."""
        await self._run(self._opened.roll_back)

    @property
    def receipts(self) -> Sequence[SendReceipt]:
        """The receipts, in the order of the messages, once it is committed."""
        return self._opened.receipts

    async def _run(self, make: Callable[[], Generator[LoopStep, Any, None]]) -> None:
        steps = make()
        try:
            # It may ask for routes, and encodes.
            step = next(steps) if self._opened.is_quick else await asyncio.to_thread(next, steps, None)
            while step is not None:
                try:
                    outcome = self._outcomes.new_answer()
                    if self._opened.transactor.begin(step, outcome.complete):
                        result = await outcome.future
                    else:
                        result = await step.client.result(step.make)
                except BaseException as error:  # noqa: BLE001 - it decides what follows
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration:
            pass
