"""The consumers for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from minimq.arguments import waiting_s
from minimq.connection.finalizers import ClosedByAsyncWith
from minimq.consuming.interceptor import Operation
from minimq.consuming.pull_consumer import ITERATED_MESSAGES, BasePullConsumer
from minimq.consuming.received import ReceivedMessage
from minimq.consuming.start_position import Start
from minimq.features.broadcasting.broadcasting import BroadcastReader
from minimq.features.listeners.listener import AsyncListener
from minimq.features.listeners.push_consumer import BasePushConsumer
from minimq.features.tables.consumer_methods import AsyncArrowPolling
from minimq.features.transactions.consumer_methods import TransactionInputs
from minimq.features.work_queues.copies import REJECTED
from minimq.features.work_queues.settler import DONE, Settlement
from minimq.features.work_queues.taken_messages import TakenMessages
from minimq.features.work_queues.work_queue_consumer import BaseWorkQueueConsumer
from minimq.features.work_queues.work_queue_message import Receivables, WorkQueueMessage, each_of, receipts_of
from minimq.filters import Filters
from minimq_common.errors import Closed
from minimq_common.model import MessageQueue, QueueData

T = TypeVar("T")


class PullConsumer(Filters, AsyncArrowPolling, TransactionInputs, ClosedByAsyncWith, BasePullConsumer):
    """Reads queues when asked to; arguments, behavior and guarantees are those of `minimq.PullConsumer`.

    It runs on the user's event loop, and so do the callbacks. Calls run one after the other. A cancelled `poll` ends at
    once and loses nothing: the next one returns the same messages. A commit that has begun continues if its call is
    cancelled. `close` makes a running `poll` raise `Closed`. Use it on one loop only.
    """

    _broadcasting = BroadcastReader
    _make_turn = asyncio.Lock
    _closing: asyncio.Future[None] | None = None

    # ---- what to read ---------------------------------------------------------------------------

    async def assign(self, queues: Iterable[MessageQueue | QueueData]) -> None:
        """Read exactly these queues; see `minimq.PullConsumer.assign`."""
        async with self._turn:
            await self._client.result(self._assigning(queues))

    async def seek(self, queue: MessageQueue, offset: Start) -> None:
        """Continue at another offset; see `minimq.PullConsumer.seek`."""
        async with self._turn:
            await self._client.result(self._offset_of(queue, offset))
            self._sought(queue)

    async def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages of these queues until `resume`."""
        async with self._turn:
            await self._client.result(self._pausing(queues, paused=True))

    async def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of these queues again."""
        async with self._turn:
            await self._client.result(self._pausing(queues, paused=False))

    # ---- reading --------------------------------------------------------------------------------

    async def poll(self, timeout: float = 1.0, max_messages: int = 4096) -> list[ReceivedMessage]:
        """Return messages, all of one queue and in its order; see `minimq.PullConsumer.poll`."""
        return await self._read(timeout, max_messages)

    async def _read(self, timeout: float, max_messages: int, *, iterated: bool = False) -> list[ReceivedMessage]:
        async with self._turn:
            try:
                await asyncio.sleep(0)  # let other tasks run, even if messages are always ready
                with self._around_poll() as call:
                    return self._deliver(await self._poll(timeout, max_messages), call, iterated=iterated)
            except BaseException:  # such as a cancellation
                self._undeliver()
                raise

    async def _poll(self, timeout: float, max_messages: int) -> list[ReceivedMessage]:
        deadline = self._begin_poll(timeout, max_messages)
        if self._must_join() and not await self._client.result(partial(self._reader.join_by, deadline), cancels=True):
            return []
        is_over = False
        while True:
            if leaving := self._attend():
                await self._client.result(partial(self._reader.release_queues, leaving, commit=self._auto_commit))
            if (messages := self._take(max_messages)) or is_over:
                return messages
            left_s = deadline - time.monotonic()
            is_over = left_s <= 0
            await self._client.result(partial(self._fetcher.wait, max_messages, (), left_s), cancels=True)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Yield messages forever. A message counts as done when the next one is requested, here or by a `poll`."""
        while True:
            for message in self._one_by_one(await self._read(1.0, ITERATED_MESSAGES, iterated=True)):
                yield message

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit offsets of the group, and wait until they are on disk; see `minimq.PullConsumer.commit`."""
        async with self._turn:
            await self._client.result(self._committing(offsets))

    async def close(self) -> None:
        """Commit finished messages, leave the group and close; see `minimq.PullConsumer.close`. Idempotent.

        It continues if the call is cancelled; another call waits for its end.
        """
        if not self._finalizer.detach():
            return
        if self._closing is None:
            self._halt()  # ends a running poll
            self._closing = asyncio.ensure_future(self._close())
            self._closing.add_done_callback(_mark_retrieved)
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        async with self._turn:
            try:
                if self._leave():
                    with suppress(Closed):  # the `Cluster` was closed before: the messages are redelivered
                        await self._client.result(self._reader.record_last)
            finally:
                with ThreadPoolExecutor(1, "minimq-aio-closing") as thread:  # leaves no thread behind
                    await asyncio.get_running_loop().run_in_executor(thread, self._reader.shut_down)


def _mark_retrieved(closing: asyncio.Future[None]) -> None:
    if not closing.cancelled():
        closing.exception()  # otherwise asyncio logs it as never retrieved


class PushConsumer(Filters, ClosedByAsyncWith, BasePushConsumer):
    """Awaits a listener, on one event loop, for the messages of its share of the queues.

    Arguments, behavior and guarantees are those of `minimq.PushConsumer`; `threads` limits the concurrent calls of the
    listener. They run in a pool of tasks on that loop.
    """

    _broadcasting = BroadcastReader

    async def start(self, listener: AsyncListener) -> None:
        """Join the group and await the listener on the running loop; see `minimq.PushConsumer.start`.

        Raises:
            InvalidArgument: also if the listener is not a coroutine function.
        """
        await self._runner.start_on(asyncio.get_running_loop(), self._adapter(listener, awaited=True))
        self._finalizer.detach()  # from here on it runs even without references to this object

    async def close(self, timeout: float = 30.0) -> None:
        """Wait for running calls of the listener, commit, leave the group; see `minimq.PushConsumer.close`."""
        self._runner.check_may_close()
        if self._finalizer.detach():
            await asyncio.to_thread(self._runner.close, waiting_s(timeout))


class WorkQueueConsumer(Filters, ClosedByAsyncWith, BaseWorkQueueConsumer):
    """Receives messages one by one; arguments, behavior and guarantees are those of `minimq.WorkQueueConsumer`.

    Messages are decoded on the user's event loop; all else runs on that of the connection. Any number of tasks may
    receive and settle concurrently. Messages that a cancelled `receive` would have returned are delivered to others.
    """

    async def start(self) -> None:
        """Fix where a new group begins; see `minimq.WorkQueueConsumer.start`."""
        await self._client.result(self._reader.begin, cancels=True)

    async def receive(
        self, max_messages: int = 32, *, invisible_s: float | None = None, timeout: float = 10.0
    ) -> list[WorkQueueMessage]:
        """Return messages, all of one queue; see `minimq.WorkQueueConsumer.receive`."""
        found = TakenMessages()
        try:
            if self._interceptors:
                with self._interceptors.receive() as call:
                    await self._receive(max_messages, invisible_s, timeout, found)
                    call.found(found)
            else:
                await self._receive(max_messages, invisible_s, timeout, found)
        except BaseException:  # such as a cancellation, perhaps after the messages arrived
            self._reader.abandon(found)
            raise
        return found

    async def _receive(
        self, max_messages: int, invisible_s: float | None, timeout: float, found: TakenMessages
    ) -> None:
        wanted = self._reader.wanted(max_messages, invisible_s, timeout)
        if self._reader.receive_prefetched(wanted, found):
            await asyncio.sleep(0)  # let other tasks run
            return
        while True:
            await self._client.result(lambda: self._reader.receive(wanted, found), cancels=True)
            if self._reader.open(found):
                return

    async def __aiter__(self) -> AsyncIterator[WorkQueueMessage]:
        """Yield messages forever, receiving one at a time."""
        while True:
            for message in await self.receive(1):
                yield message

    async def ack(self, messages: Receivables) -> None:
        """Acknowledge messages and wait until that is on disk; see `minimq.WorkQueueConsumer.ack`."""
        await self._settle("ack", messages, DONE)

    async def ack_async(self, messages: Receivables) -> asyncio.Future[None]:
        """Acknowledge messages without waiting. Returns a future that raises as `ack`."""
        return asyncio.wrap_future(self._ack_soon(messages))

    async def release(self, messages: Receivables, delay_s: float = 0.0) -> None:
        """Release failed messages; see `minimq.WorkQueueConsumer.release`."""
        await self._settle("release", messages, self._reader.freed(delay_s))

    async def extend(self, messages: Receivables, invisible_s: float | None = None) -> None:
        """Restart the invisible duration of messages; see `minimq.WorkQueueConsumer.extend`."""
        await self._settle("extend", messages, self._reader.extended(invisible_s))

    async def reject(self, messages: WorkQueueMessage | Iterable[WorkQueueMessage], reason: str = REJECTED) -> None:
        """Send messages to the dead letters of the group; see `minimq.WorkQueueConsumer.reject`."""
        given = [*each_of(messages)]
        with self._interceptors.settle("reject", given):
            await self._client.result(lambda: self._reader.reject(given, reason), cancels=True)

    async def close(self) -> None:
        """Leave the group and close; see `minimq.WorkQueueConsumer.close`. Idempotent."""
        if self._finalizer.detach():
            await asyncio.to_thread(self._reader.end)

    async def _settle(self, operation: Operation, messages: Receivables, how: Settlement) -> None:
        if not self._interceptors:
            await self._settle_now(messages, how)
            return
        given = [*each_of(messages)]
        with self._interceptors.settle(operation, given):
            await self._settle_now(given, how)

    async def _settle_now(self, messages: Receivables, how: Settlement) -> None:
        receipts = receipts_of(messages, self.group)  # here: `messages` may run code of the user
        await self._client.result(lambda: self._reader.settler.settling(receipts, how), cancels=True)
