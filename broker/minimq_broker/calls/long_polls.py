"""The long polls of one broker: readers that wait at the end of a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from minimq_broker.state.state import QueueKey


class Reader(Protocol):
    def wake(self) -> None:
        """Check again; may call `LongPolls.discard`. Must not raise."""


class LongPolls:
    """Belongs to the event loop; any thread may read their number."""

    def __init__(self) -> None:
        self._waiting: dict[QueueKey, dict[Reader, None]] = {}
        #: Called with each queue that has grown, or with None if all readers must check again. Must not raise.
        self.listeners: list[Callable[[QueueKey | None], None]] = []

    def __len__(self) -> int:
        return sum(map(len, self._waiting.copy().values()))

    def add(self, queue: QueueKey, reader: Reader) -> None:
        """Wake a reader once its queue may have grown, or its topic may be gone."""
        self._waiting.setdefault(queue, {})[reader] = None

    def discard(self, queue: QueueKey, reader: Reader) -> None:
        """Do not wake a reader any more. Idempotent."""
        readers = self._waiting.get(queue)
        if readers is not None:
            readers.pop(reader, None)
            if not readers:
                del self._waiting[queue]

    def wake(self, queue: QueueKey) -> None:
        """Wake the readers of a queue, to check whether it has grown and whether they may still read."""
        for reader in self._waiting.pop(queue, ()):
            reader.wake()
        for listener in self.listeners:
            listener(queue)

    def wake_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for readers in waiting.values():
            for reader in readers:
                reader.wake()
        for listener in self.listeners:
            listener(None)
