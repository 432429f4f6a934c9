"""The producer for asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterable, Coroutine, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from minimq.arguments import check_message_type, waiting_s
from minimq.connection.loop_calls import LoopOutcome, await_steps
from minimq.connection.loop_thread import LoopCallQueue
from minimq.features.delayed.recalls import RecallResult
from minimq.features.requests.producer_methods import RequestParts
from minimq.features.requests.reply import Reply, RequestMessage
from minimq.features.requests.requester import OpenRequest
from minimq.features.transactions.open_transaction import BaseTransaction, M, TransactionalConsumer
from minimq.sending.pending_batch import Outcome
from minimq.sending.producer_core import CLOSE_TIMEOUT_S
from minimq.sending.receipt import BatchReceipt, SendReceipt
from minimq.sending.selectors import Selector
from minimq_common.errors import DeadlineExceeded, SendFailed
from minimq_common.model import Message, MessageQueue

if TYPE_CHECKING:
    from minimq.features.tables.row_writer import OnRejected


class Producer(RequestParts):
    """Sends messages from one event loop; arguments, behavior and guarantees are those of `minimq.Producer`.

    Never blocks the loop: it awaits name servers and room in the buffer, and `send_many` encodes on a thread of the
    loop's executor. Not thread-safe: use it on one loop at a time. Interceptors run on the loop, on the executor in
    `send_many`, and on a thread of the producer.

    A `send` that is cancelled while it waits for a route or for room sends nothing. After that, cancelling has no
    effect on the message: it is sent, and its receipt dropped.
    """

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
        # Ctrl-C cancels the task of `asyncio.run`.
        interrupted = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
        try:
            await self.close(self._core.close_timeout_s(interrupted=interrupted))
        except SendFailed:
            if error is None:  # otherwise raise the error of the block
                raise

    # ---- sending --------------------------------------------------------------------------------

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> SendReceipt:
        """Send a message and wait until it is on disk; see `minimq.Producer.send`."""
        outcome: LoopOutcome[SendReceipt] = LoopOutcome(self._home())
        later = self._hand_in(message, queue, selector, outcome)
        if later is not None:
            await later
        return await outcome.future

    async def send_async(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> asyncio.Future[SendReceipt]:
        """Send a message without waiting for its receipt. Returns once the message is buffered.

        Returns:
            A future of the receipt. It raises as `send`. Cancelling it does not stop the message.
        """
        outcome: LoopOutcome[SendReceipt] = LoopOutcome(self._home())
        later = self._hand_in(message, queue, selector, outcome)
        if later is not None:
            await later
        return outcome.future

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

    async def send_arrow(
        self, topic: str | None, rows: object, *, on_rejected: OnRejected | None = None
    ) -> list[BatchReceipt]:
        """Send the rows of an Arrow table as messages, on a thread; see `minimq.Producer.send_arrow`.

        If it is cancelled, the rows are still sent.
        """
        from minimq.features.tables.row_writer import send_rows  # needs pyarrow

        return await asyncio.to_thread(send_rows, self._core, topic, rows, on_rejected)

    async def recall(self, handle: str | None) -> RecallResult:
        """Recall a delayed message, so that it is never delivered; see `minimq.Producer.recall`."""
        return await self._core.recall(handle).result()

    @overload
    def transaction(self, consumer: None = None) -> ProducerTransaction[Any]: ...

    @overload
    def transaction(self, consumer: TransactionalConsumer[M]) -> ProducerTransaction[M]: ...

    def transaction(self, consumer: TransactionalConsumer[Any] | None = None) -> ProducerTransaction[Any]:
        """Return a transaction for an `async with` block; see `minimq.Producer.transaction`."""
        return ProducerTransaction(self._core.transactor, consumer)

    # ---- requests -------------------------------------------------------------------------------

    async def request(
        self,
        message: Message,
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
    ) -> Reply:
        """Send a message and wait until one of its consumers replies; see `minimq.Producer.request`.

        If it is cancelled, the message may have been sent, and a reply is dropped.
        """
        outcome, request = await self._request(message, waiting_s(timeout), queue, selector)
        try:
            return await outcome.future
        finally:
            self._requester.forget(request)

    async def request_async(
        self,
        message: Message,
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
    ) -> asyncio.Future[Reply]:
        """Send a request without waiting for its reply. Returns once it is buffered.

        Returns:
            A future of the reply. It raises as `request`. Cancelling it does not stop the request.
        """
        outcome, _ = await self._request(message, waiting_s(timeout), queue, selector)
        return outcome.future

    async def reply(self, request: RequestMessage, reply: Reply) -> None:
        """Reply to a request; see `minimq.Producer.reply`."""
        self._replier.answer(request, reply)

    async def _request(
        self, message: Message, timeout_s: float, queue: MessageQueue | None, selector: Selector | None
    ) -> tuple[LoopOutcome[Reply], OpenRequest]:
        requester = self._requester
        outcome: LoopOutcome[Reply] = LoopOutcome(self._home())
        request = requester.new(message, outcome, timeout_s)
        try:
            if not requester.is_ready(message.topic):
                await self._core.client.result(lambda: requester.prepare(message, request.deadline), cancels=True)
            later = self._hand_in(requester.begin(request, message), queue, selector, request)
            if later is not None:
                limit = asyncio.timeout(request.deadline - time.monotonic())
                try:
                    async with limit:
                        await later
                except TimeoutError:
                    if not limit.expired():
                        raise
                    raise DeadlineExceeded(
                        f"the message was not sent within {timeout_s:g} s, as it waited behind others or for room in "
                        "the buffer: send more slowly, raise buffer_bytes, or wait longer"
                    ) from None
        except BaseException:
            requester.forget(request)
            if not outcome.future.cancel():  # the request has just expired
                outcome.future.exception()  # else asyncio logs it
            raise
        return outcome, request

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
        item = core.prepare(message, queue, selector, outcome)
        if core.hand_in(item, wait=False):
            return None
        return self._in_turn(core.hand_in_later(item))

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
        if not self._core.knows(message.topic):
            await self._core.find(message)
        await self._core.hand_in_later(self._core.prepare(message, queue, selector, outcome))

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


class ProducerTransaction(BaseTransaction[M]):
    """Messages that consumers see all together, or none of them; see `minimq.Producer.transaction`.

    Cancelling the task during the commit does not stop the commit, but its outcome is lost. While the end of the block
    still finds topics, or encodes a large transaction, cancelling it sends nothing.
    """

    _awaits = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await await_steps(self._leave(error))

    async def receive(self, timeout: float = 1.0, max_messages: int = 4096) -> list[M]:
        """Receive messages from the consumer of the transaction; once per transaction."""
        source = self._begin_receiving()
        return source.took(await source.receive(timeout, max_messages))

    async def rollback(self) -> None:
        """Discard the messages; those of the consumer are redelivered. The rest of the block may continue."""
        await await_steps(self._roll_back())
