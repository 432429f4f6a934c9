"""A memory budget for answers that clients have not read yet: slow readers must not starve the others.

gRPC holds a message until HTTP/2 flow control has sent its last byte, and a client that does not read can delay that
forever. So a server waits for room in the budget before it builds a message. The last quarter is reserved for small
messages. While a message waits for room, connections of clients that do not read are shut down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from minimq_common.outage_log import OutageLog
from minimq_common.wire.rpc import address_of

log = logging.getLogger(__name__)

_SHARE_OF_SMALL = 0.25
SMALL_BYTES = 32 << 10
#: While others wait, writing a message may take this long, plus its size divided by the rate below.
STUCK_S = 5.0
SLOWEST_BYTES_PER_S = 512 << 10
_CHECK_INTERVAL_S = 0.5


@dataclass(slots=True, eq=False)
class Write:
    """A message that is being written. `peer` is in gRPC's format."""

    peer: str
    size: int
    began: float

    @property
    def stuck_at(self) -> float:
        """The monotonic time from which the peer counts as not reading."""
        return self.began + STUCK_S + self.size / SLOWEST_BYTES_PER_S


def shut_down(peers: Collection[str]) -> None:
    """Shut down the sockets to some peers, in gRPC's format. Blocks: do not call it on an event loop.

    gRPC cannot do that: ending a call waits until the unread bytes are sent.
    """
    addresses = {_plain(address_of(peer)) for peer in peers}
    for path in Path("/dev/fd").iterdir():
        if not path.is_socket():
            continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as connection:
            host, port = (*connection.getpeername(), "", "")[:2]
            if _plain(f"{host}:{port}") in addresses:
                connection.shutdown(socket.SHUT_RDWR)


def _plain(address: str) -> str:
    return re.sub(r"[][]|::ffff:|%\w+", "", address)


class UnsentBudget:
    """The budget in bytes for unsent messages of all streams of a server. Lives on its event loop."""

    def __init__(self, limit: int, shut_down: Callable[[Collection[str]], object] = shut_down) -> None:
        self._limit = limit
        self._limit_of_large = round(limit * (1 - _SHARE_OF_SMALL))
        self._shut_down = shut_down
        self._outage = OutageLog(log)
        self._writes: dict[Write, None] = {}
        self._freed = asyncio.Event()
        self._checking: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.waiting = 0
        self.bytes = 0
        #: Only small messages have room.
        self.is_tight = self._limit_of_large <= 0
        self.ended = 0

    def has_room(self, expected: int) -> bool:
        """Tell whether there is room for a message of about `expected` bytes."""
        return self.bytes < (self._limit if expected <= SMALL_BYTES else self._limit_of_large)

    async def room(self, expected: int) -> None:
        """Wait for room for a message. Nothing is reserved: call `begin` before the next `await`."""
        while not self.has_room(expected):
            if self._checking is None:
                self._checking = asyncio.create_task(self._check(), name="unsent-check")
            self.waiting += 1
            try:
                await self._freed.wait()
            finally:
                self.waiting -= 1

    def begin(self, peer: str, size: int) -> Write:
        """Reserve room for a message that the caller starts to write now."""
        write = Write(peer, size, time.monotonic())
        self.bytes += size
        self.is_tight = self.bytes >= self._limit_of_large
        self._writes[write] = None
        return write

    def end(self, write: Write) -> None:
        """Release the room: the message was sent, or writing it failed."""
        del self._writes[write]
        self.bytes -= write.size
        self.is_tight = self.bytes >= self._limit_of_large
        if self.waiting:
            self._freed.set()  # wakes all that wait now
            self._freed.clear()

    def give_up(self, peers: Collection[str]) -> None:
        """Shut down the connections of clients that do not read, when others wait for another resource."""
        if peers and (self._ending is None or self._ending.done()):
            self._ending = asyncio.create_task(self._end(peers), name="unsent-end")

    async def _check(self) -> None:
        try:
            while self.waiting:
                await asyncio.sleep(_CHECK_INTERVAL_S)
                now = time.monotonic()
                stuck = {write.peer for write in self._writes if write.stuck_at <= now}
                if stuck and self.waiting:
                    await self._end(stuck)
        finally:
            self._checking = None

    async def _end(self, peers: Collection[str]) -> None:
        self.ended += len(peers)
        unsent: Counter[str] = Counter()
        for write in self._writes:
            unsent[write.peer] += write.size
        for peer in peers:
            log.warning(
                "closed connection: the client does not read its answers while others wait peer=%s "
                "unsent_bytes=%d limit_bytes=%d",
                peer,
                unsent[peer],
                self._limit,
            )
        try:
            await asyncio.to_thread(self._shut_down, peers)
            self._outage.worked("connections can be ended again")
        except OSError as error:  # no free file descriptor: the next check tries again
            self._outage.failed("connections not ended, will try again error=%s", error, cause=error)
