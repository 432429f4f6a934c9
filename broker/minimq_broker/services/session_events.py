"""Events that wait for one client to read them."""

from __future__ import annotations

import asyncio
from collections import deque

#: With more than this nothing is to be received from a client.
_ENOUGH_BYTES = 64 << 10


class SessionEvents:
    """Encoded events that wait for one client, in order. A member list takes the place of one that still waits.

    Attributes:
        waiting_bytes: those of all but member lists.
    """

    def __init__(self) -> None:
        self._waiting: deque[bytes | str] = deque()  # of member lists the group
        self._lists: dict[str, bytes] = {}
        self._changed = asyncio.Event()
        self.waiting_bytes = 0

    def add(self, event: bytes) -> None:
        """Let an event wait."""
        self._waiting.append(event)
        self.waiting_bytes += len(event)
        self._changed.set()

    def add_list(self, group: str, event: bytes) -> None:
        """Let a member list wait."""
        if group not in self._lists:
            self._waiting.append(group)
        self._lists[group] = event
        self._changed.set()

    async def some(self) -> None:
        """Return when an event waits."""
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()

    async def few(self) -> None:
        """Return when not many wait."""
        while self.waiting_bytes > _ENOUGH_BYTES:
            self._changed.clear()
            await self._changed.wait()

    @property
    def next_size(self) -> int:
        """Bytes of the first of them."""
        return len(self._event(self._waiting[0]))

    def take(self) -> bytes:
        """Return the first of them."""
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
