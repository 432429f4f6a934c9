"""The pull consumer for asyncio."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Self, TypeVar, Unpack

from minimq.connection.cluster import Cluster
from minimq.filtering.tag_filter import TagExpression
from minimq.options import with_changes
from minimq.rebalance import AllocationStrategy
from minimq.receiving.consumer import ConsumerFace
from minimq.receiving.consumer_options import ConsumerChanges, ConsumerOptions
from minimq.receiving.poll_batch import PollBatch
from minimq.receiving.pull_reader import PullReader
from minimq.receiving.received import ReceivedMessage
from minimq.transport.dropped import WhenDropped
from minimq.transport.home_process import HomeProcess
from minimq.transport.start_position import Start
from minimq_common.errors import Closed, Fenced, MiniMQError
from minimq_common.model import MessageQueue

log = logging.getLogger(__name__)

T = TypeVar("T")


class PullConsumer(ConsumerFace):
    """Reads queues when asked to; what it takes, does and promises is the same as of `minimq.PullConsumer`.

    The work is done by one thread, so that nothing blocks the event loop; calls wait for the one before them. A `poll`
    that is cancelled ends soon and loses nothing: what it would have returned, the next one returns. `close` ends a
    `poll` that runs with `Closed`. One loop uses it.
    """

    _reader: PullReader

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        group: str | None = None,
        allocation: str | AllocationStrategy = "averagely",
        start: Start = "earliest",
        auto_commit: bool = True,
        client_id: str | None = None,
        options: ConsumerOptions | None = None,
        **changes: Unpack[ConsumerChanges],
    ) -> None:
        self._reader = PullReader(
            nameserver,
            group=group,
            allocation=allocation,
            start=start,
            auto_commit=auto_commit,
            client_id=client_id,
            options=with_changes(options or ConsumerOptions(), changes, PullConsumer),
        )
        self._process = HomeProcess("consumer")
        self._thread = ThreadPoolExecutor(1, "minimq-aio-consumer")
        self._turn = asyncio.Lock()
        self._closing: asyncio.Future[None] | None = None
        self._when_dropped = WhenDropped(self, self._reader.release)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close. Log, rather than raise, a commit of queues that were lost, and an error that follows another one."""
        try:
            await self.close()
        except MiniMQError as failure:
            if error is None and not isinstance(failure, Fenced):
                raise
            log.warning("consumer: last commit failed group=%s error=%s", self.group, failure)

    # ---- what to read ---------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: TagExpression = "*", where: str | None = None) -> None:
        """Read the queues of a topic that the group gives this member; see `minimq.PullConsumer.subscribe`."""
        self._reader.subscribe(topic, expression, where)

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues; see `minimq.PullConsumer.assign`."""
        await self._run(partial(self._reader.assign, list(queues)))

    async def seek(self, queue: MessageQueue, offset: Start) -> None:
        """Go on elsewhere; see `minimq.PullConsumer.seek`."""
        await self._run(partial(self._reader.seek, queue, offset))

    async def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand nothing out of these queues until `resume`."""
        await self._run(partial(self._reader.pause, list(queues)))

    async def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Hand messages of these queues out again."""
        await self._run(partial(self._reader.resume, list(queues)))

    def position(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue has. Raises `InvalidArgument`."""
        return self._reader.position(queue)

    # ---- reading --------------------------------------------------------------------------------

    async def poll(self, timeout: float = 1.0, max_messages: int = 4096) -> list[ReceivedMessage]:
        """Return messages, all of one queue and in its order; see `minimq.PullConsumer.poll`."""
        async with self._turn:
            return (await self._ask(timeout, max_messages)).take_all()

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Yield messages for ever. A message counts as done when the next one is asked for, here or by a `poll`."""
        while True:
            async with self._turn:
                messages = iter(await self._ask(timeout=1.0))
                message = next(messages, None)
            while message is not None:
                yield message
                message = next(messages, None)

    async def _ask(self, timeout: float, max_messages: int = 4096) -> PollBatch:
        """Poll. What comes when the caller was cancelled is given to nobody, and comes again with the next poll."""
        given_up = threading.Event()
        try:
            batch = await self._run(partial(self._reader.ask, timeout, max_messages, given_up.is_set))
        except asyncio.CancelledError:
            given_up.set()
            self._reader.wake()
            raise
        if batch.over:  # by a `close` meanwhile, which has not committed it
            raise Closed("the consumer is closed")
        return batch

    def at_end(self) -> bool:
        """Tell whether everything that was stored when last heard of has been returned."""
        return self._reader.at_end()

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Record how far the group is, and wait until it is on disk; see `minimq.PullConsumer.commit`."""
        await self._run(partial(self._reader.commit, offsets))

    async def close(self) -> None:
        """Commit what was in hand, leave the group, end; see `minimq.PullConsumer.close`. Idempotent.

        When it is cancelled, it goes on all the same; another call waits for its end.
        """
        if self._process.is_forked:
            return
        if self._closing is None:
            self._when_dropped.closed()
            self._reader.halt()  # a poll that is under way would hold the thread
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._run(self._reader.close)
        finally:
            self._thread.shutdown(wait=False)

    async def _run(self, call: Callable[[], T]) -> T:
        self._process.check()
        try:
            answer = asyncio.get_running_loop().run_in_executor(self._thread, call)
        except RuntimeError:  # the thread is gone
            raise Closed("the consumer is closed") from None
        answer.add_done_callback(_take_note)
        # What the thread has been given it does, whatever becomes of the caller.
        return await asyncio.shield(answer)


def _take_note(answer: asyncio.Future[T]) -> None:
    """Take an error out of an answer, which asyncio would log: a caller that was cancelled does not hear of it."""
    if not answer.cancelled():
        answer.exception()
