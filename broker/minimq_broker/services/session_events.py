"""Events that wait for one client to read them."""

from __future__ import annotations

import asyncio
from collections import deque

#: With more than this nothing is to be received from a client.
_ENOUGH_BYTES = 64 << 10


class SessionEvents:
    """Encoded events that wait for one client, in order. A member list replaces one that still waits."""

    def __init__(self) -> None:
        self._waiting: deque[bytes | str] = deque()  # of member lists the group
        self._lists: dict[str, bytes] = {}
        #: The version of each group with the latest join of the client: older lists are of a time before.
        self._versions: dict[str, int] = {}
        self._changed = asyncio.Event()
        self.waiting_bytes = 0

    def add(self, event: bytes) -> None:
        """Let an event wait."""
        self._waiting.append(event)
        self.waiting_bytes += len(event)
        self._changed.set()

    def joined(self, group: str, version: int) -> None:
        """Let no list of a group wait any more that is older than a version."""
        if version > self._versions.get(group, 0) and self._lists.pop(group, None) is not None:
            self._waiting.remove(group)
        self._versions[group] = version

    def add_list(self, group: str, version: int, event: bytes) -> None:
        """Let a member list wait, unless it is from before the client has joined, maybe anew."""
        if version < self._versions.get(group, 0):
            return
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
        """Bytes of the first of them; 0 when there is none."""
        return len(self._event(self._waiting[0])) if self._waiting else 0

    def take(self) -> bytes | None:
        """Return the first of them; None when there is none any more."""
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
