"""Writing to one server stream from several tasks that may be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from minimq_common import rpc

Message = TypeVar("Message")


class StreamWriter(Generic[Message]):
    """Writes messages one after the other, each whole.

    gRPC breaks a stream on which a write is cut short, is overtaken by another, or is still under way when the call
    ends. So a write goes on when the task that began it is cancelled, and whoever ends the call calls `drained` first.

    Args:
        context: of the call.
    """

    def __init__(self, context: Any) -> None:  # noqa: ANN401 - the context of any stream
        self._context = context
        self._turn = asyncio.Lock()

    async def write(self, make: Callable[[], Message | None]) -> Message | None:
        """Wait for the turn, then make a message and write it.

        Args:
            make: called when it is this message's turn, so that it takes no memory before; None writes nothing.

        Returns:
            What was made.
        """
        await self._turn.acquire()
        try:
            message = make()
        except BaseException:
            self._turn.release()
            raise
        if message is None:
            self._turn.release()
            return None
        write = asyncio.ensure_future(rpc.write(self._context, message))
        write.add_done_callback(self._written)
        await asyncio.shield(write)
        return message

    async def drained(self) -> None:
        """Wait for the write that is under way."""
        async with self._turn:
            pass

    def _written(self, write: asyncio.Future[None]) -> None:
        self._turn.release()
        if not write.cancelled():
            write.exception()  # seen: the task that waits for it, if there still is one, raises it
