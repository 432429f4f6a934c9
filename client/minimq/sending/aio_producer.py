"""The producer for asyncio, without the methods of features."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterable, Coroutine, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self

from minimq.arguments import check_message_type
from minimq.connection.loop_thread import LoopCallQueue
from minimq.sending.pending_batch import Outcome
from minimq.sending.producer import BaseProducer
from minimq.sending.producer_core import CLOSE_TIMEOUT_S, after, close_timeout_s
from minimq.sending.receipt import SendReceipt
from minimq.sending.selectors import Selector
from minimq_common.errors import MinimqError
from minimq_common.model import Message, MessageQueue


class AsyncProducer(BaseProducer):
    """The methods of `minimq.aio.Producer`, except those of features in `minimq.aio.producer`."""

    #: The loop that uses this producer.
    _loop: LoopCallQueue | None = None
    #: Held while a message waits for its route or for room, so that messages keep their order.
    _turn: asyncio.Lock
    #: Number of messages that hold `_turn` or wait for it.
    _behind = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        with after(error):
            await self.close(close_timeout_s(error))

    # ---- sending --------------------------------------------------------------------------------

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> SendReceipt:
        """Send a message and wait until it is on disk; see `minimq.Producer.send`."""
        future, outcome = self._future()
        later = self._hand_in(message, queue, selector, outcome)
        if later is not None:
            await later
        receipt: SendReceipt = await future
        return receipt

    async def send_async(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> asyncio.Future[SendReceipt]:
        """Send a message without waiting for its receipt. Returns once the message is buffered.

        Returns:
            A future of the receipt. It raises as `send`. Cancelling it does not stop the message.
        """
        future, outcome = self._future()
        later = self._hand_in(message, queue, selector, outcome)
        if later is not None:
            await later
        return future

    async def send_one_way(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> None:
        """Send a message without a receipt; see `minimq.Producer.send_one_way`."""
        self._home()
        later = self._hand_in(message, queue, selector, None)
        if later is not None:
            await later

    async def send_many(
        self,
        messages: Iterable[Message] | AsyncIterable[Message],
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
    ) -> list[SendReceipt]:
        """Send messages in large batches and wait until all are on disk; see `minimq.Producer.send_many`.

        If it is cancelled, it stops reading after the current batch. All messages that it has read are sent, except
        those of an asynchronous iterable that do not fill a batch yet.

        Args:
            messages: the messages. A plain iterable is read on a thread; an asynchronous one on the loop, batch by
                batch.
            queue: send all to this queue, in their order.
            selector: chooses the queue of each.
        """
        if isinstance(messages, AsyncIterable):
            return await self._send_stream(messages, queue, selector)
        cancelled = threading.Event()
        try:
            return await asyncio.to_thread(self._core.send_many, messages, queue, selector, cancelled)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all messages sent so far are on disk or have failed; see `minimq.Producer.flush`."""
        self._core.client.connection.process.check()
        await asyncio.to_thread(self._core.flush, timeout)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Flush and close; see `minimq.Producer.close`. Idempotent."""
        if self._finalizer.detach():
            await asyncio.to_thread(self._core.close, timeout)

    # ---- without blocking the loop --------------------------------------------------------------

    def _home(self) -> LoopCallQueue:
        loop = self._core.client.user_loop()
        if self._loop is not loop:
            self._loop, self._turn = loop, asyncio.Lock()
        return loop

    def _future(self) -> tuple[asyncio.Future[Any], Outcome[Any]]:
        """Return a future of the running loop, and the outcome that sets it from any thread."""
        loop = self._home()
        future = loop.loop.create_future()
        return future, partial(loop.call, _deliver, future)

    def _hand_in(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        outcome: Outcome[SendReceipt] | None,
    ) -> Coroutine[None, None, None] | None:
        core = self._core
        if type(message) is not Message:
            check_message_type(message)
        if self._behind or not core.knows(message.topic):
            return self._in_turn(self._find_and_hand_in(message, queue, selector, outcome))
        item = core.pending(message, queue, selector, outcome)
        freed = core.try_add(item)
        return None if freed is None else self._in_turn(core.add_later(item, freed))

    async def _in_turn(self, work: Coroutine[None, None, None]) -> None:
        self._behind += 1
        try:
            async with self._turn:
                await work
        finally:
            self._behind -= 1
            work.close()  # it may not have begun

    async def _find_and_hand_in(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        outcome: Outcome[SendReceipt] | None,
    ) -> None:
        core = self._core
        if not core.knows(message.topic):
            await core.find(message)
        item = core.pending(message, queue, selector, outcome)
        if (freed := core.try_add(item)) is not None:
            await core.add_later(item, freed)

    async def _send_stream(
        self, messages: AsyncIterable[Message], queue: MessageQueue | None, selector: Selector | None
    ) -> list[SendReceipt]:
        receipts: list[SendReceipt] = []
        part: list[Message] = []
        async for message in messages:
            part.append(message)
            if len(part) == self._core.options.batch_messages:
                receipts += await asyncio.to_thread(self._core.send_many, part, queue, selector)
                part = []
        if part:
            receipts += await asyncio.to_thread(self._core.send_many, part, queue, selector)
        return receipts


def _deliver(future: asyncio.Future[Any], outcome: object) -> None:
    if future.done():  # cancelled
        return
    if isinstance(outcome, MinimqError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
