"""The push consumer for asyncio: its listener is a coroutine function."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from minimq.connection.cluster import Cluster
from minimq.filtering.tag_filter import TagExpression
from minimq.rebalance import AllocationStrategy
from minimq.receiving.consumer import ConsumerFace
from minimq.receiving.consumer_options import ConsumerChanges, ConsumerOptions
from minimq.receiving.listener import ConsumeResult, ListenerGone, RetryLater, is_async
from minimq.receiving.push_consumer import PushConsumer as PlainPushConsumer
from minimq.receiving.received import ReceivedMessage
from minimq.transport.start_position import Start
from minimq_common.errors import InvalidArgument

T = TypeVar("T")

#: How often a call that has not returned looks whether its loop has ended, in seconds.
_LOOK_S = 1.0

AsyncListener = Callable[[list[ReceivedMessage]], Awaitable[ConsumeResult | RetryLater]]


class PushConsumer(ConsumerFace):
    """Awaits a listener on one event loop for the messages of the queues that its group gives it.

    What it takes, does and promises is the same as of `minimq.PushConsumer`; `threads` bounds the calls of the listener
    that are under way at once.
    """

    _reader: PlainPushConsumer

    def __init__(  # noqa: PLR0913 - by name
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        group: str,
        allocation: str | AllocationStrategy = "averagely",
        start: Start = "earliest",
        threads: int = 8,
        batch_size: int = 32,
        orderly: bool = False,
        client_id: str | None = None,
        options: ConsumerOptions | None = None,
        **changes: Unpack[ConsumerChanges],
    ) -> None:
        self._reader = PlainPushConsumer(
            nameserver,
            group=group,
            allocation=allocation,
            start=start,
            threads=threads,
            batch_size=batch_size,
            orderly=orderly,
            client_id=client_id,
            options=options,
            **changes,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def subscribe(self, topic: str, expression: TagExpression = "*", *, where: str | None = None) -> None:
        """Read a topic; before `start`. See `minimq.PushConsumer.subscribe`."""
        self._reader.subscribe(topic, expression, where=where)

    async def start(self, listener: AsyncListener) -> None:
        """Join the group and begin to await the listener on the loop that runs; see `minimq.PushConsumer.start`.

        Raises:
            InvalidArgument: also when the listener is no coroutine function.
        """
        if not is_async(listener):
            raise InvalidArgument(
                f"the listener is {listener!r}: it must be a coroutine function; minimq.PushConsumer takes plain ones"
            )
        loop = asyncio.get_running_loop()

        async def result(messages: list[ReceivedMessage]) -> ConsumeResult | RetryLater:
            return await listener(messages)

        def call(messages: list[ReceivedMessage]) -> ConsumeResult | RetryLater:
            return await_on(loop, result(messages))

        await asyncio.to_thread(self._reader.start, call)

    async def close(self, timeout: float = 30.0) -> None:
        """Let running calls of the listener end, commit, leave the group; see `minimq.PushConsumer.close`."""
        await asyncio.to_thread(self._reader.close, timeout)


def await_on(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, T]) -> T:
    """Return the result of a call on the loop of another thread. Raises `ListenerGone` when the loop has ended."""
    try:
        future = asyncio.run_coroutine_threadsafe(call, loop)
    except RuntimeError:
        call.close()
        raise _gone() from None
    while True:
        try:
            return future.result(_LOOK_S)
        except TimeoutError:
            if future.done():  # just now, or the listener raised it
                return future.result()
            if not loop.is_closed():
                continue
        except CancelledError:  # maybe by the end of the loop, which cancels its tasks before it is closed
            closed_by = time.monotonic() + _LOOK_S
            while not loop.is_closed():
                if time.monotonic() > closed_by:
                    raise
                time.sleep(_LOOK_S / 20)
        if inspect.getcoroutinestate(call) == inspect.CORO_CREATED:
            call.close()
        raise _gone()


def _gone() -> ListenerGone:
    return ListenerGone("the event loop of the listener has ended: close the consumer before its loop ends")
