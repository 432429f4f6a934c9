"""A memory budget for answers that clients have not read yet: slow readers must not starve the others.

gRPC holds a message until HTTP/2 flow control has sent its last byte, and a client that does not read can delay that
forever. So a server waits for room in the budget before it builds a message. The last quarter is reserved for small
messages. While a message waits for room, those that were not read by their deadline stop counting. gRPC holds them, one
for each stream, until the client reads or its connection ends; keepalive ends that of a client that has stopped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

log = logging.getLogger(__name__)

_SHARE_OF_SMALL = 0.25
SMALL_BYTES = 32 << 10
#: While others wait, a message counts this long, plus its size divided by the rate below.
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
        """The deadline on the monotonic clock, after which the peer counts as not reading."""
        return self.began + STUCK_S + self.size / SLOWEST_BYTES_PER_S


class UnsentBudget:
    """The budget in bytes for unsent messages of all streams of a server. Lives on its event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._limit_of_large = round(limit * (1 - _SHARE_OF_SMALL))
        self._writes: set[Write] = set()
        self._freed = asyncio.Event()
        self._checking: asyncio.Task[None] | None = None
        self.waiting = 0
        self.bytes = 0
        #: Only small messages have room.
        self.is_tight = self._limit_of_large <= 0

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
        self._writes.add(write)
        return write

    def end(self, write: Write) -> None:
        """Release the room: the message was sent, or writing it failed. Idempotent."""
        if write not in self._writes:
            return
        self._writes.remove(write)
        self.bytes -= write.size
        self.is_tight = self.bytes >= self._limit_of_large
        if self.waiting:
            self._freed.set()  # wakes all that wait now
            self._freed.clear()

    async def _check(self) -> None:
        try:
            while self.waiting:
                await asyncio.sleep(_CHECK_INTERVAL_S)
                now = time.monotonic()
                for write in [write for write in self._writes if write.stuck_at <= now]:
                    text = "answer not read: its client does not read while others wait peer=%s bytes=%d"
                    log.warning(text, write.peer, write.size)
                    self.end(write)
        finally:
            self._checking = None
