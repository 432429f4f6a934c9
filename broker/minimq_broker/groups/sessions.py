"""The session of one member of a group, and the events that wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from minimq_common.errors import MinimqError
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: The session of a client ends if more bytes of events wait for it. Member lists do not count: only the latest one of
#: each group waits.
MAX_WAITING_BYTES = 8 << 20
#: While more bytes of events wait, the broker receives nothing from the client.
_PAUSE_RECEIVING_BYTES = 64 << 10
#: The start position of a group, unless a member has sent another: skips no message.
EARLIEST = broker_pb2.StartPosition(at=broker_pb2.START_AT_EARLIEST)


class SessionEvents:
    """Encoded events that wait for one client, in order. A new member list replaces one that still waits."""

    def __init__(self) -> None:
        self._waiting: deque[bytes | str] = deque()  # the name of the group stands for its member list
        self._lists: dict[str, bytes] = {}
        #: The version of each group at the latest join of the client: older lists are outdated.
        self._versions: dict[str, int] = {}
        self._changed = asyncio.Event()
        self.waiting_bytes = 0

    def add(self, event: bytes) -> None:
        self._waiting.append(event)
        self.waiting_bytes += len(event)
        self._changed.set()

    def joined(self, group: str, version: int) -> None:
        """Drop the waiting member list if it is older than the client's join, and ignore older lists from now on."""
        if version > self._versions.get(group, 0) and self._lists.pop(group, None) is not None:
            self._waiting.remove(group)
        self._versions[group] = version

    def add_list(self, group: str, version: int, event: bytes) -> None:
        """Queue a member list, unless it is older than the latest join of the client."""
        if version < self._versions.get(group, 0):
            return
        if group not in self._lists:
            self._waiting.append(group)
        self._lists[group] = event
        self._changed.set()

    async def some(self) -> None:
        """Wait until there is an event."""
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()

    async def few(self) -> None:
        """Wait until few bytes of events wait."""
        while self.waiting_bytes > _PAUSE_RECEIVING_BYTES:
            self._changed.clear()
            await self._changed.wait()

    @property
    def next_size(self) -> int:
        """Bytes of the next event; 0 without one."""
        return len(self._event(self._waiting[0])) if self._waiting else 0

    def take(self) -> bytes | None:
        """Remove and return the next event; None without one."""
        if not self._waiting:
            return None
        item = self._waiting.popleft()
        event = self._event(item)
        if isinstance(item, str):
            del self._lists[item]
        else:
            self.waiting_bytes -= len(event)
        self._changed.set()
        return event

    def _event(self, item: bytes | str) -> bytes:
        return self._lists[item] if isinstance(item, str) else item


class Session:
    """One client in one group. Membership and leases outlive a broken stream by the grace period."""

    def __init__(self, user: str, client_id: str, run: int = 0) -> None:
        self.user, self.client_id, self.run = user, client_id, run
        #: Empty until it joins one.
        self.group = ""
        #: The start position of the group, if it is new. By default, no message is skipped.
        self.start = EARLIEST
        self.connected = True
        #: Ended because heartbeats were missing: the client may still run, suspended or cut off.
        self.is_silent = False
        #: Continues a session of the client whose connection broke.
        self.is_back = False
        self.grace: asyncio.TimerHandle | None = None
        self.receiver: asyncio.Task[None] | None = None
        #: Why the broker has ended it.
        self.failure: MinimqError | None = None
        self.events = SessionEvents()

    def tell(self, event: broker_pb2.SessionEvent) -> None:
        """Send an event. Ends the session if the client lets too many bytes wait."""
        self.events.add(event.SerializeToString())
        if self.events.waiting_bytes > MAX_WAITING_BYTES and self.receiver is not None:
            log.warning("session: ended, the client does not read client=%s", self.client_id)
            self.receiver.cancel()

    def end(self, error: MinimqError) -> None:
        self.failure = error
        if self.receiver is not None:
            self.receiver.cancel()
