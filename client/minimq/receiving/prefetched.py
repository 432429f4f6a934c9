"""Messages that were taken before the application asked for them, and how many of them are worth it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import length_hint
from typing import NamedTuple

from minimq.receiving.popped import PoppedMessage

#: Messages are taken ahead for so many seconds of work: a broker is asked that often, and others get the rest.
_AHEAD_S = 0.1


class _PrefetchedTake(NamedTuple):
    """Messages of one queue, and until when they may be received, on the monotonic clock."""

    messages: Iterator[PoppedMessage]
    until: float


class Prefetched:
    """Messages that wait to be received, the oldest first. Not thread-safe."""

    def __init__(self) -> None:
        self._parts: deque[_PrefetchedTake] = deque()

    def __len__(self) -> int:
        return sum(length_hint(part.messages) for part in self._parts)

    def add(self, messages: Sequence[PoppedMessage], until: float) -> None:
        """Add messages of one queue, which may be received until some time."""
        self._parts.append(_PrefetchedTake(iter(messages), until))

    def take(self, most: int, now: float, into: list[PoppedMessage]) -> bool:
        """Move messages of one queue into an empty list; return whether there were any.

        Ctrl-C comes before or after they are moved, so that none is in neither place, or in both.
        """
        parts = self._parts
        while parts and now < parts[0].until:
            into.extend(islice(parts[0].messages, most))
            if into:
                return True
            parts.popleft()
        return False

    def late(self, now: float) -> list[PoppedMessage]:
        """Remove the messages whose time is over, and return them."""
        found: list[PoppedMessage] = []
        while self._parts and self._parts[0].until <= now:
            found += self._parts.popleft().messages
        return found


class Pace:
    """The pace at which an application receives messages. Not thread-safe."""

    def __init__(self) -> None:
        self.ahead = 0
        self._count = 0
        self._since = 0.0

    def received(self, count: int, now: float) -> None:
        """Note that messages were received."""
        elapsed = now - self._since
        if elapsed >= _AHEAD_S:
            self.ahead = int(self._count * _AHEAD_S / elapsed)
            self._count, self._since = 0, now
        self._count += count
