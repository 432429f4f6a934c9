"""The push consumer for asyncio: its listener is a coroutine function."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from minimq.options import DEFAULT_NAMESERVER
from minimq.receiving.listener import ConsumeResult, RetryLater, is_async
from minimq.receiving.push_consumer import PushConsumer as PlainPushConsumer
from minimq.receiving.received import ReceivedMessage
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue

AsyncListener = Callable[[list[ReceivedMessage]], Awaitable[ConsumeResult | RetryLater]]


class PushConsumer:
    """Awaits a listener on one event loop for the messages of the queues that its group gives it.

    What it does and promises is the same as of `minimq.PushConsumer`; `threads` is how many calls of the listener may
    be under way at once.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", or a sequence of addresses.
        arguments: those of `minimq.PushConsumer`, by name.

    Raises:
        InvalidArgument: a name, an address or an option is wrong.
    """

    def __init__(self, nameserver: str | Sequence[str] = DEFAULT_NAMESERVER, **arguments: Any) -> None:  # noqa: ANN401
        self._consumer = PlainPushConsumer(nameserver, **arguments)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are this consumer's now, sorted."""
        return self._consumer.assignment

    @property
    def missed_messages(self) -> int:
        """How many messages it has passed over, since they were deleted before their turn; see `offset_reset`."""
        return self._consumer.missed_messages

    def state_saved(self, queues: Iterable[MessageQueue]) -> None:
        """Tell that the state which belongs to queues is saved; see `minimq.PushConsumer.state_saved`."""
        self._consumer.state_saved(queues)

    def subscribe(self, topic: str, *arguments: Any, **more: Any) -> None:  # noqa: ANN401 - those of the plain one
        """Read a topic; before `start`. See `minimq.PushConsumer.subscribe`."""
        self._consumer.subscribe(topic, *arguments, **more)

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
            return asyncio.run_coroutine_threadsafe(result(messages), loop).result()

        await asyncio.to_thread(self._consumer.start, call)

    async def close(self, *arguments: Any, **more: Any) -> None:  # noqa: ANN401 - those of the plain one
        """Let running calls of the listener end, commit, leave the group; see `minimq.PushConsumer.close`."""
        await asyncio.to_thread(self._consumer.close, *arguments, **more)
