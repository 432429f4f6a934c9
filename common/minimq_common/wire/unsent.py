"""A budget for answers that clients have not read yet, so that clients that do read are served.

gRPC holds a message until the flow control of HTTP/2 lets its last byte go, which is for as long as its reader likes.
So a server waits for room before it makes a message. The last quarter is for small messages alone. While somebody
waits, connections whose clients do not read are shut down.
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

_FOR_SMALL = 0.25
SMALL_BYTES = 32 << 10
#: A message may take so long while others wait, in seconds, and what it takes at the rate below.
STUCK_S = 5.0
SLOWEST_BYTES_PER_S = 512 << 10
_CHECK_INTERVAL_S = 0.5


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


def shut_down(peers: Collection[str]) -> None:
    """Shut down the connections to some peers, as gRPC names them. It takes time: not for an event loop.

    gRPC offers no way: the end of a call waits behind the bytes that nobody reads.
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


class Unsent:
    """Room for unsent messages of all streams of a server. Lives on one event loop."""

    def __init__(self, limit: int, shut_down: Callable[[Collection[str]], object] = shut_down) -> None:
        self._limit = limit
        self._limit_of_large = round(limit * (1 - _FOR_SMALL))
        self._shut_down = shut_down
        self._outage = OutageLog(log)
        self._writes: dict[Write, None] = {}
        self._freed = asyncio.Event()
        self._checking: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.waiting = 0
        self.bytes = 0
        #: Only small messages may be made.
        self.is_tight = self._limit_of_large <= 0
        self.ended = 0

    def has_room(self, expected: int) -> bool:
        """Tell whether a message of about that size may be made at once."""
        return self.bytes < (self._limit if expected <= SMALL_BYTES else self._limit_of_large)

    async def room(self, expected: int) -> None:
        """Wait until a message may be made. It has to be made, and to `begin`, before anything else is waited for."""
        while not self.has_room(expected):
            if self._checking is None:
                self._checking = asyncio.create_task(self._check(), name="unsent-check")
            self.waiting += 1
            try:
                await self._freed.wait()
            finally:
                self.waiting -= 1

    def begin(self, peer: str, size: int) -> Write:
        """Take room for a message that is written from now on."""
        write = Write(peer, size, time.monotonic())
        self.bytes += size
        self.is_tight = self.bytes >= self._limit_of_large
        self._writes[write] = None
        return write

    def end(self, write: Write) -> None:
        """Give room back: the message has gone, or was given up."""
        del self._writes[write]
        self.bytes -= write.size
        self.is_tight = self.bytes >= self._limit_of_large
        if self.waiting:
            self._freed.set()  # wakes all that wait now
            self._freed.clear()

    def give_up(self, peers: Collection[str]) -> None:
        """End the connections of clients that do not read, because others wait for something else than room."""
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
                "connection ended: the client does not read its answers, and others wait peer=%s "
                "unsent_bytes=%d limit_bytes=%d",
                peer,
                unsent[peer],
                self._limit,
            )
        try:
            await asyncio.to_thread(self._shut_down, peers)
            self._outage.worked("connections can be ended again")
        except OSError as error:  # no file may be opened: they are ended at a later check
            self._outage.failed("connections not ended, will try again error=%s", error, cause=error)
