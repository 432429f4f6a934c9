"""The push consumer for asyncio: its listener is a coroutine function."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from minimq.arguments import waiting_s
from minimq.receiving.listening.listener import AsyncListener
from minimq.receiving.listening.push_consumer import PushFace


class PushConsumer(PushFace):
    """Awaits a listener on one event loop for the messages of the queues that its group gives it.

    Arguments, behavior and guarantees are those of `minimq.PushConsumer`; `threads` limits the concurrent calls of the
    listener. Each is a task on that loop, or reuses the task of one that has returned.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self, listener: AsyncListener) -> None:
        """Join the group and begin to await the listener on the loop that runs; see `minimq.PushConsumer.start`.

        Raises:
            InvalidArgument: also when the listener is no coroutine function.
        """
        await self._dispatcher.start_on(asyncio.get_running_loop(), self._adapter(listener, awaited=True))
        self._when_dropped.closed()  # it keeps running without references to this object

    async def close(self, timeout: float = 30.0) -> None:
        """Let running calls of the listener end, commit, leave the group; see `minimq.PushConsumer.close`."""
        self._dispatcher.check_may_close()
        self._when_dropped.closed()
        await asyncio.to_thread(self._dispatcher.close, waiting_s(timeout))
