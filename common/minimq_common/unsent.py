"""A bound on the answers that clients have not read yet, so that clients that do read are served.

gRPC holds a message that is written until the flow control of HTTP/2 lets the last byte of it go, which is for as long
as its reader likes. So room is looked for before a message is made, and given back when it has gone. When there is
little left it is for small messages. While somebody waits, the connection of a reader that takes too long is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from minimq_common import connections
from minimq_common.outage_log import OutageLog

log = logging.getLogger(__name__)

#: This part of the room is for small messages alone. A client that reads slowly, or has nothing but little things to
#: hear, is served by it while others fill the rest.
_FOR_SMALL = 0.25
SMALL_BYTES = 32 << 10
#: A message may take so long while others wait, in seconds, and what it takes at the rate below. A reader that is slow
#: but reads is faster.
STUCK_S = 5.0
SLOWEST_BYTES_PER_S = 512 << 10
#: Time between two looks for what is stuck, in seconds.
_LOOK_S = 0.5


@dataclass(slots=True, eq=False)
class Write:
    """A message that is being written to a peer, as gRPC names it."""

    peer: str
    size: int
    began: float

    @property
    def stuck_at(self) -> float:
        """The time at which it takes too long."""
        return self.began + STUCK_S + self.size / SLOWEST_BYTES_PER_S


class Unsent:
    """Room for unsent messages of all streams of a server. Lives on one event loop."""

    def __init__(self, limit: int, cut: Callable[[Collection[str]], object] = connections.cut) -> None:
        self._limit = limit
        self._limit_of_large = round(limit * (1 - _FOR_SMALL))
        self._cut = cut
        self._outage = OutageLog(log)
        self._writes: dict[Write, None] = {}  # in the order in which they began
        #: Answers that wait for room.
        self._small: deque[asyncio.Future[None]] = deque()
        self._large: deque[asyncio.Future[None]] = deque()
        self._looking: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.bytes = 0
        self.ended = 0

    @property
    def is_tight(self) -> bool:
        """True while only small messages may be made."""
        return self.bytes >= self._limit_of_large

    def has_room(self, expected: int) -> bool:
        """Tell whether a message of about that size may be made at once."""
        return self.bytes < self._limit_for(expected)

    @property
    def waiting(self) -> int:
        """Messages that wait for room."""
        return len(self._small) + len(self._large)

    async def room(self, expected: int) -> None:
        """Wait until a message may be made. It has to be made, and to `begin`, before anything else is waited for."""
        waiting = self._small if expected <= SMALL_BYTES else self._large
        while not self.has_room(expected):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting.append(waiter)
            if self._looking is None:
                self._looking = asyncio.create_task(self._look(), name="unsent-look")
            try:
                await waiter
            except asyncio.CancelledError:
                with contextlib.suppress(ValueError):
                    waiting.remove(waiter)
                self._wake()  # it may have been woken: then it is the turn of another one
                raise
        self._wake()  # there may be room for more

    def begin(self, peer: str, size: int) -> Write:
        """Take room for a message that is written from now on."""
        write = Write(peer, size, time.monotonic())
        self.bytes += size
        self._writes[write] = None
        return write

    def end(self, write: Write) -> None:
        """Give room back: the message has gone, or was given up."""
        del self._writes[write]
        self.bytes -= write.size
        if self._small or self._large:
            self._wake()

    def give_up(self, peers: Collection[str]) -> None:
        """End the connections of clients that do not read, because others wait for something else than room."""
        if peers and (self._ending is None or self._ending.done()):
            self._ending = asyncio.create_task(self._end(peers), name="unsent-end")

    def _limit_for(self, expected: int) -> int:
        return self._limit if expected <= SMALL_BYTES else self._limit_of_large

    def _wake(self) -> None:
        for waiting, limit in ((self._small, self._limit), (self._large, self._limit_of_large)):
            if self.bytes < limit:
                while waiting and waiting[0].done():
                    waiting.popleft()
                if waiting:
                    waiting.popleft().set_result(None)

    # ---- clients that do not read ---------------------------------------------------------------

    async def _look(self) -> None:
        try:
            while self.waiting:
                await asyncio.sleep(_LOOK_S)
                now = time.monotonic()
                stuck = {write.peer for write in self._writes if write.stuck_at <= now}
                if stuck and self.waiting:
                    await self._end(stuck)
        finally:
            self._looking = None

    async def _end(self, peers: Collection[str]) -> None:
        self.ended += len(peers)
        unsent: Counter[str] = Counter()
        for write in self._writes:
            unsent[write.peer] += write.size
        for peer in peers:
            log.warning(
                "connection ended: the client does not read its answers, and others wait peer=%s "
                "unsent_bytes=%d limit_bytes=%d",
                peer,
                unsent[peer],
                self._limit,
            )
        try:
            await asyncio.to_thread(self._cut, {connections.peer_address(peer) for peer in peers})
            self._outage.worked("connections can be ended again")
        except OSError as error:  # nothing more may be opened: they are ended at a later look
            self._outage.failed("connections not ended, will try again error=%s", error, cause=error)
