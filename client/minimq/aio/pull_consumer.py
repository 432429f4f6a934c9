"""The pull consumer for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Self

from minimq.connection.loop_calls import await_steps
from minimq.receiving.consumer import Found
from minimq.receiving.pull_consumer import PullFace
from minimq.receiving.received import ReceivedMessage
from minimq.receiving.transaction_inputs import PullInput
from minimq.transport.start_position import Start
from minimq_common.errors import MiniMQError
from minimq_common.model import MessageQueue, QueueData

if TYPE_CHECKING:
    import pyarrow as pa


class PullConsumer(PullFace):
    """Reads queues when asked to; arguments, behavior and guarantees are those of `minimq.PullConsumer`.

    It runs on the user's event loop, and so do the callbacks. Calls wait for the one before them. A cancelled `poll`
    ends at once and loses nothing: the next one returns the same messages. A commit that has begun continues if its
    call is cancelled. `close` ends a `poll` that runs with `Closed`. One loop uses it.
    """

    _make_turn = asyncio.Lock
    _closing: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close. Log, rather than raise, a commit of queues that were lost, and an error that follows another one."""
        try:
            await self.close()
        except MiniMQError as failure:
            self._end_block(failure, error)

    # ---- what to read ---------------------------------------------------------------------------

    async def assign(self, queues: Iterable[MessageQueue | QueueData]) -> None:
        """Read exactly these queues; see `minimq.PullConsumer.assign`."""
        async with self._turn:
            await await_steps(self._reader.assign(queues))

    async def seek(self, queue: MessageQueue, offset: Start) -> None:
        """Continue at another offset; see `minimq.PullConsumer.seek`."""
        async with self._turn:
            await await_steps(self._reader.seek(queue, offset))

    async def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand nothing out of these queues until `resume`."""
        async with self._turn:
            await await_steps(self._reader.pause(queues, paused=True))

    async def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Hand messages of these queues out again."""
        async with self._turn:
            await await_steps(self._reader.pause(queues, paused=False))

    # ---- reading --------------------------------------------------------------------------------

    async def poll(self, timeout: float = 1.0, max_messages: int = 4096) -> list[ReceivedMessage]:
        """Return messages, all of one queue and in its order; see `minimq.PullConsumer.poll`."""
        found = await self._poll(timeout, max_messages)
        if found is None:
            return []
        found.handed.given = found.given
        return found.messages

    async def poll_arrow(
        self, timeout: float = 1.0, max_messages: int = 1 << 16, columns: Iterable[str] | None = None
    ) -> pa.Table:
        """Return messages as an Arrow table; see `minimq.PullConsumer.poll_arrow`."""
        from minimq.receiving.arrow.columns import PolledColumns  # needs pyarrow

        made = PolledColumns(columns)
        return made.table(await self.poll(timeout, max_messages))

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Yield messages forever. A message counts as done when the next one is requested, here or by a `poll`."""
        while True:
            if (found := await self._poll(1.0, 4096)) is not None:
                for message in found.one_by_one(self._reader):
                    yield message

    async def _poll(self, timeout: float, max_messages: int) -> Found | None:
        async with self._turn:
            await asyncio.sleep(0)  # before anything is taken: others have their turn, however much there is to read
            return await await_steps(self._reader.poll(timeout, max_messages))

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Record how far the group is, and wait until it is on disk, as `minimq.PullConsumer.commit`."""
        async with self._turn:
            await await_steps(self._reader.commit(offsets))

    def transaction_input(self) -> PullInput:
        """Return what one transaction takes from this consumer, for `Producer.transaction`.

        Raises:
            InvalidArgument: it commits automatically, or has no group.
        """
        return self._reader.transaction_input(self.poll)

    async def close(self) -> None:
        """Commit finished messages, leave the group, end; see `minimq.PullConsumer.close`. Idempotent.

        If it is cancelled, it continues all the same; another call waits for its end.
        """
        if self._reader.is_forked:
            return
        if self._closing is None:
            self._when_dropped.closed()
            self._reader.halt()  # which ends a running poll
            self._closing = asyncio.ensure_future(self._close())
            self._closing.add_done_callback(_take_note)
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        async with self._turn:
            try:
                await await_steps(self._reader.close())
            finally:
                with ThreadPoolExecutor(1, "minimq-aio-closing") as thread:  # which is gone when this returns
                    await asyncio.get_running_loop().run_in_executor(thread, self._reader.drop)


def _take_note(closing: asyncio.Future[None]) -> None:
    if not closing.cancelled():
        closing.exception()
