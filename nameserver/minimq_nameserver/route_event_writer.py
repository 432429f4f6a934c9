"""Writes what watchers are to know to their streams."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from minimq_common import rpc
from minimq_common.unsent import Unsent
from minimq_nameserver.loop_share import LoopShare
from minimq_nameserver.watchers import Watcher

#: Events above that size take room; smaller ones of all watchers fit beside them.
_LARGE_BYTES = 4 << 10


class RouteEventWriter:
    """Tells each watcher one thing at a time, and goes on when that is written. Lives on one event loop.

    It takes a slice of each round of the loop, however many watchers there are. A watcher whose client does not read
    has one event on its way and takes no time. Large events wait for room.
    """

    def __init__(self, describe: Callable[[str], bytes], unsent: Unsent) -> None:
        self._describe = describe
        self._unsent = unsent
        self._streams: dict[Watcher, Any] = {}
        self._writes: dict[Watcher, asyncio.Future[None]] = {}
        self._ready: deque[Watcher] = deque()
        self._waiting: set[Watcher] = set()  # those in `_ready`, and those without room
        self._without_room: list[Watcher] = []
        self._share = LoopShare()
        self._telling: asyncio.Task[None] | None = None
        self._letting_in: asyncio.Task[None] | None = None

    def open(self, watcher: Watcher, context: Any) -> None:  # noqa: ANN401 - the context of any stream
        """Begin to write to the stream of a watcher."""
        self._streams[watcher] = context

    def abandon(self, watcher: Watcher) -> None:
        """Write no more to the stream of a watcher."""
        self._streams.pop(watcher, None)

    async def close(self, watcher: Watcher) -> None:
        """Write no more to the stream of a watcher, and return when the event on its way is written.

        gRPC breaks a stream on which a write is still under way when the call ends.
        """
        self.abandon(watcher)
        writing = self._writes.get(watcher)
        if writing is not None:
            await asyncio.wait((writing,))

    def ready(self, watcher: Watcher) -> None:
        """Note that a watcher has news."""
        if watcher in self._waiting or watcher in self._writes or watcher not in self._streams:
            return
        self._waiting.add(watcher)
        self._ready.append(watcher)
        if self._telling is None:
            self._telling = asyncio.create_task(self._tell(), name="nameserver-route-events")

    async def _tell(self) -> None:
        try:
            async with self._share:
                while self._ready:
                    watcher = self._ready.popleft()
                    self._waiting.discard(watcher)
                    context = self._streams.get(watcher)
                    topic = watcher.take() if context is not None else None
                    if topic is not None:
                        self._write(watcher, context, topic)
                        await self._share.turn()
        finally:
            self._telling = None

    def _write(self, watcher: Watcher, context: Any, topic: str) -> None:  # noqa: ANN401 - the context of any stream
        event = self._describe(topic)
        size = len(event)
        if size > _LARGE_BYTES and not self._unsent.has_room(size):
            watcher.add_news(topic)
            self._waiting.add(watcher)
            self._without_room.append(watcher)
            if self._letting_in is None:
                self._letting_in = asyncio.create_task(self._let_in(size), name="nameserver-route-events-room")
            return
        taken = self._unsent.begin(context.peer(), size) if size > _LARGE_BYTES else None

        def written(writing: asyncio.Future[None]) -> None:
            if taken is not None:
                self._unsent.end(taken)
            del self._writes[watcher]
            if writing.cancelled() or writing.exception() is not None:
                self._streams.pop(watcher, None)  # the client has left, and its call ends by that
            elif watcher.has_news:
                self.ready(watcher)

        self._writes[watcher] = writing = asyncio.ensure_future(rpc.write(context, event))
        writing.add_done_callback(written)

    async def _let_in(self, expected: int) -> None:
        await self._unsent.room(expected)
        self._letting_in = None
        waiting, self._without_room = self._without_room, []
        for watcher in waiting:
            self._waiting.discard(watcher)
            self.ready(watcher)
