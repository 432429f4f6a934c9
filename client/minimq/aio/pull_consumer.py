"""The pull consumer for asyncio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from minimq.options import DEFAULT_NAMESERVER
from minimq.receiving.pull_consumer import PullConsumer as PlainPullConsumer
from minimq.receiving.received import ReceivedMessage
from minimq_common.errors import Closed, MiniMQError
from minimq_common.model import MessageQueue

log = logging.getLogger(__name__)

T = TypeVar("T")


class PullConsumer:
    """Reads queues when asked to; what it does and promises is the same as of `minimq.PullConsumer`.

    The work is done by one thread, so that nothing blocks the event loop; calls wait for the one before them. A `poll`
    that is cancelled loses nothing: what it would have returned, the next one returns. One loop uses it.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", or a sequence of addresses.
        arguments: those of `minimq.PullConsumer`, by name.

    Raises:
        InvalidArgument: a name, an address or an option is wrong.
    """

    def __init__(self, nameserver: str | Sequence[str] = DEFAULT_NAMESERVER, **arguments: Any) -> None:  # noqa: ANN401
        self._consumer = PlainPullConsumer(nameserver, **arguments)
        self._thread = ThreadPoolExecutor(1, "minimq-aio-consumer")
        #: A poll that nobody has taken the messages of: it is under way, or its caller was cancelled.
        self._polling: asyncio.Future[list[ReceivedMessage]] | None = None
        self._turn = asyncio.Lock()
        self._closing: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except MiniMQError as failure:
            if error is None:
                raise
            log.warning("consumer: last commit failed error=%s", failure)  # not the first failure

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are this consumer's now, sorted."""
        return self._consumer.assignment

    @property
    def missed_messages(self) -> int:
        """How many messages it has passed over, since they were deleted before their turn; see `offset_reset`."""
        return self._consumer.missed_messages

    # ---- what to read ---------------------------------------------------------------------------

    def subscribe(self, topic: str, *arguments: Any, **more: Any) -> None:  # noqa: ANN401 - those of the plain one
        """Read the queues of a topic that the group gives this member; see `minimq.PullConsumer.subscribe`."""
        self._consumer.subscribe(topic, *arguments, **more)

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues; see `minimq.PullConsumer.assign`."""
        await self._run(partial(self._consumer.assign, list(queues)))

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset; see `minimq.PullConsumer.seek`."""
        await self._run(partial(self._consumer.seek, queue, offset))

    async def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand nothing out of these queues until `resume`."""
        await self._run(partial(self._consumer.pause, list(queues)))

    async def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Hand messages of these queues out again."""
        await self._run(partial(self._consumer.resume, list(queues)))

    # ---- reading --------------------------------------------------------------------------------

    async def poll(self, timeout: float = 1.0, max_messages: int = 4096) -> list[ReceivedMessage]:
        """Return messages, all of one queue and in its order; see `minimq.PullConsumer.poll`."""
        async with self._turn:
            if self._polling is None:
                self._polling = asyncio.ensure_future(self._run(partial(self._consumer.poll, timeout, max_messages)))
            # When the caller is cancelled here, what comes waits for the next one.
            await asyncio.wait((self._polling,))
            polled, self._polling = self._polling, None
            return polled.result()

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Yield messages for ever. What a poll brought counts as done when its last message was taken."""
        while True:
            for message in await self.poll():
                yield message

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Record how far the group is, and wait until it is on disk; see `minimq.PullConsumer.commit`."""
        if offsets is None:
            untaken = {message.queue: message.queue_offset for message in (await self._untaken())[:1]}
            await self._run(partial(self._consumer.commit_polled, untaken))
        else:
            await self._run(partial(self._consumer.commit, offsets))

    async def close(self) -> None:
        """Commit what was in hand, leave the group, end; see `minimq.PullConsumer.close`. Idempotent.

        When it is cancelled, it goes on all the same; another call waits for its end.
        """
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            for message in (await self._untaken())[:1]:
                # Nobody has seen these messages: they must not be committed as done.
                if message.queue in self._consumer.assignment:
                    await self._run(partial(self._consumer.seek, message.queue, message.queue_offset))
        except MiniMQError:
            pass  # of the poll, which nobody waits for any more
        try:
            await self._run(self._consumer.close)
        finally:
            self._thread.shutdown(wait=False)

    async def _untaken(self) -> list[ReceivedMessage]:
        """Return what a cancelled poll brought."""
        return await asyncio.shield(self._polling) if self._polling is not None else []

    async def _run(self, call: Callable[[], T]) -> T:
        try:
            answer = asyncio.get_running_loop().run_in_executor(self._thread, call)
        except RuntimeError:  # the thread is gone
            raise Closed("the consumer is closed") from None
        # What the thread has been given it does, whatever becomes of the caller.
        return await asyncio.shield(answer)
