"""Large answers of a name server, which are handed out one after the other while there is room."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from minimq_common.unsent import SMALL_BYTES, Unsent
from minimq_nameserver.loop_share import LoopShare

#: So fast gRPC takes an answer over, while everybody else waits.
_COPIED_BYTES_PER_S = 400 << 20


class LargeAnswers:
    """Hands answers out. Lives on one event loop."""

    def __init__(self, unsent: Unsent) -> None:
        self._unsent = unsent
        self._share = LoopShare()

    async def hand_out(
        self, make: Callable[[], Awaitable[bytes]], context: grpc.aio.ServicerContext[Any, Any]
    ) -> bytes:
        """Return an answer to the call of the present task: a large one when there is room, one after the other.

        It takes its room until the task has ended.
        """
        answer = await make()
        if len(answer) <= SMALL_BYTES:
            return answer
        del answer  # whoever waits holds none that is older than that of others
        task = asyncio.current_task()
        assert task is not None
        size = 0
        await self._share.begin()
        try:
            while True:
                answer = await make()
                size = len(answer)
                if self._unsent.has_room(size):
                    break
                del answer
                await self._unsent.room(size)
            write = self._unsent.begin(context.peer(), size)
            task.add_done_callback(lambda _: self._unsent.end(write))
            return answer
        finally:
            self._share.rest(size / _COPIED_BYTES_PER_S)
