"""The producer for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from minimq.aio.outcomes import LoopOutcome, LoopOutcomes
from minimq.connection.cluster import Cluster
from minimq.options import with_changes
from minimq.sending.interceptor import SendInterceptor
from minimq.sending.pending_batch import Outcome
from minimq.sending.producer_core import ProducerCore
from minimq.sending.producer_options import ProducerChanges, ProducerOptions
from minimq.sending.receipt import SendReceipt
from minimq.sending.selectors import Selector
from minimq.sending.statistics import ProducerStatistics
from minimq.transport.dropped import WhenDropped
from minimq_common.errors import Closed, SendFailed
from minimq_common.model import Message, MessageQueue

#: A message of that size costs the loop too much time, in copies and in compression.
_LARGE_BYTES = 1 << 17


class Producer:
    """Sends messages from one event loop; what it takes, does and promises is the same as of `minimq.Producer`.

    Nothing blocks the loop: what has to wait, for a name server or for room in the buffer, waits in a thread. Not
    thread-safe: one loop at a time uses it. Interceptors are called by threads of the producer as well as on the loop.
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        options: ProducerOptions | None = None,
        *,
        interceptors: Sequence[SendInterceptor] = (),
        **changes: Unpack[ProducerChanges],
    ) -> None:
        self._options = with_changes(options or ProducerOptions(), changes, Producer)
        self._core = ProducerCore(nameserver, self._options, interceptors)
        # One thread, so that what waits is handed in in its order.
        self._waiting = ThreadPoolExecutor(1, "minimq-aio-producer")
        #: How many messages are with it.
        self._with_thread = 0
        self._outcomes: LoopOutcomes | None = None
        self._when_dropped = WhenDropped(self, self._core.release, self._core.flush)

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
            if error is None:  # otherwise the error that is on its way says more
                raise

    # ---- sending --------------------------------------------------------------------------------

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> SendReceipt:
        """Send a message and wait until it is on disk; see `minimq.Producer.send`."""
        outcome = self._outcome()
        call = self._hand_in(message, queue, selector, outcome)
        if call is not None:
            await self._in_thread(call)
        return await outcome.future

    async def send_async(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> asyncio.Future[SendReceipt]:
        """Send a message; return as soon as it is handed in, which is at once while there is room in the buffer.

        Returns:
            A future of the receipt, which raises what `send` would. Cancelling it takes nothing back.
        """
        outcome = self._outcome()
        call = self._hand_in(message, queue, selector, outcome)
        if call is not None:
            await self._in_thread(call)
        return outcome.future

    async def send_one_way(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> None:
        """Send a message of whose outcome nobody wants to hear; see `minimq.Producer.send_one_way`."""
        call = self._hand_in(message, queue, selector, None)
        if call is not None:
            await self._in_thread(call)

    async def send_many(
        self,
        messages: Iterable[Message] | AsyncIterable[Message],
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
    ) -> list[SendReceipt]:
        """Send messages in large batches and wait until all are on disk; see `minimq.Producer.send_many`.

        Args:
            messages: what to send. A plain iterable is read by a thread; an asynchronous one on the loop, a batch at a
                time.
            queue: where all must go, in their order.
            selector: chooses the queue of each.
        """
        if isinstance(messages, AsyncIterable):
            return await self._send_stream(messages, queue, selector)
        return await asyncio.to_thread(self._core.send_many, messages, queue, selector)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything handed in is on disk or has failed; see `minimq.Producer.flush`."""
        self._core.check_process()
        await asyncio.to_thread(self._core.flush, timeout)

    def statistics(self) -> ProducerStatistics:
        """Return what was done so far."""
        return self._core.statistics()

    async def close(self, timeout: float | None = None) -> None:
        """Flush and end; see `minimq.Producer.close`. Idempotent."""
        if self._core.is_forked:
            return
        self._when_dropped.closed()
        try:
            await asyncio.to_thread(self._core.close, timeout)
        finally:
            self._waiting.shutdown(wait=False)

    # ---- without blocking the loop --------------------------------------------------------------

    def _outcome(self) -> LoopOutcome:
        loop = asyncio.get_running_loop()
        if self._outcomes is None or self._outcomes.loop is not loop:
            self._outcomes = LoopOutcomes(loop)
        return self._outcomes.new()

    def _hand_in(
        self, message: Message, queue: MessageQueue | None, selector: Selector | None, outcome: Outcome | None
    ) -> Callable[[], object] | None:
        """Hand a message in if that takes no time; otherwise return the call by which the thread does it.

        What comes while others are with the thread goes there as well, or it would overtake them.
        """
        self._core.check_process()
        if self._with_thread or len(message.body) >= _LARGE_BYTES or not self._core.knows(message.topic):
            return partial(self._core.send, message, queue, selector, outcome)
        item = self._core.prepare(message, queue, selector, outcome)
        return None if self._core.hand_in(item, wait=False) else partial(self._core.hand_in, item)

    async def _in_thread(self, call: Callable[[], object]) -> None:
        try:
            answer = asyncio.get_running_loop().run_in_executor(self._waiting, call)
        except RuntimeError:  # the thread is gone
            raise Closed("the producer is closed") from None
        self._with_thread += 1
        answer.add_done_callback(self._thread_is_done)
        # What the thread has been given it does, whatever becomes of this task: others wait behind it.
        await asyncio.shield(answer)

    def _thread_is_done(self, answer: asyncio.Future[object]) -> None:
        self._with_thread -= 1
        if not answer.cancelled():
            answer.exception()  # whose task was cancelled does not hear of it

    async def _send_stream(
        self, messages: AsyncIterable[Message], queue: MessageQueue | None, selector: Selector | None
    ) -> list[SendReceipt]:
        receipts: list[SendReceipt] = []
        part: list[Message] = []
        async for message in messages:
            part.append(message)
            if len(part) == self._options.batch_messages:
                receipts += await asyncio.to_thread(self._core.send_many, part, queue, selector)
                part = []
        if part:
            receipts += await asyncio.to_thread(self._core.send_many, part, queue, selector)
        return receipts
