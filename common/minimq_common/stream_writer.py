"""Writing to one server stream from several tasks that may be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import grpc.aio

from minimq_common import rpc
from minimq_common.security.byte_rate import ByteRate
from minimq_common.unsent import Unsent, Write


class _Message(Protocol):
    def SerializeToString(self) -> bytes: ...  # noqa: N802 - as protobuf calls it


Message = TypeVar("Message", bound=_Message)


class StreamWriter(Generic[Message]):
    """Writes messages one after the other, each whole.

    gRPC breaks a stream on which a write is cut short, is overtaken by another, or is still under way when the call
    ends. So a write goes on when the task that began it is cancelled, and whoever ends the call calls `drained` first.

    Messages are handed to gRPC encoded, which the server allows by its `Dispatcher`: so they are held once less.
    """

    def __init__(self, context: Any, unsent: Unsent, rate: ByteRate | None = None) -> None:  # noqa: ANN401 - the context of any stream
        self._rate = rate
        self._context = context
        self._unsent = unsent
        self._peer: str = context.peer()
        self._turn = asyncio.Lock()

    async def write(
        self, make: Callable[[], Message | bytes | None], expected: Callable[[], int] | None = None
    ) -> bool:
        """Wait for the turn and for room, then make a message and write it."""
        await self._turn.acquire()
        try:
            if self._rate is not None:
                await self._rate.turn()
            if self._unsent.is_tight:
                await self._unsent.room(expected() if expected else 0)
            data = _encoded(make())
        except BaseException:
            self._turn.release()
            raise
        if data is None:
            self._turn.release()
            return False
        if self._rate is not None:
            self._rate.moved(len(data))
        taken = self._unsent.begin(self._peer, len(data))
        write = asyncio.ensure_future(rpc.write(self._context, data))
        write.add_done_callback(partial(self._written, taken))
        del data  # the write has it for as long as it lasts
        await asyncio.shield(write)
        return True

    async def write_alone(self, make: Callable[[], Message], expected: Callable[[], int] | None = None) -> None:
        """Write a message as the only task that writes to this stream, and that leaves it when it is cancelled.

        It costs less than `write`.
        """
        if self._rate is not None:
            await self._rate.turn()
        if self._unsent.is_tight:
            await self._unsent.room(expected() if expected else 0)
        data = make().SerializeToString()
        if self._rate is not None:
            self._rate.moved(len(data))
        taken = self._unsent.begin(self._peer, len(data))
        try:
            await self._context.write(data)
        except grpc.aio.InternalError:  # see `rpc.write`
            raise asyncio.CancelledError from None
        finally:
            self._unsent.end(taken)

    async def drained(self) -> None:
        """Wait for the write that is under way."""
        async with self._turn:
            pass

    def _written(self, taken: Write, write: asyncio.Future[None]) -> None:
        self._unsent.end(taken)
        self._turn.release()
        if not write.cancelled():
            write.exception()  # seen: the task that waits for it, if there still is one, raises it


def _encoded(message: _Message | bytes | None) -> bytes | None:
    return message if message is None or isinstance(message, bytes) else message.SerializeToString()
