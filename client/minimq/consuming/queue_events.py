"""Changes of a consumer's queues, until the user's callbacks have run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from minimq.consuming.queue_decisions import OffsetReset, QueueEvent
from minimq.consuming.queue_reader import QueueReader
from minimq_common.model import MessageQueue


class QueueEvents:
    """Queue changes whose user callbacks are still to be called, in order. Lives on the connection's event loop.

    `take` moves them aside for `announce` on the polling thread, which after an interrupt continues with the rest.
    """

    def __init__(self, readers: Mapping[MessageQueue, QueueReader]) -> None:
        self._readers = readers
        #: Number of messages that were skipped by offset resets.
        self.missed_messages = 0
        self._events: list[tuple[QueueEvent, MessageQueue]] = []
        self._resets: list[tuple[QueueReader, OffsetReset]] = []
        #: The queues that were announced as gained.
        self._announced: set[MessageQueue] = set()
        # Moved here by `take`. The polling thread removes each one after its callback.
        self._taken: list[tuple[QueueEvent, MessageQueue]] = []
        self._taken_resets: list[OffsetReset] = []

    @property
    def are_there(self) -> bool:
        return bool(self._events or self._resets or self._taken or self._taken_resets)

    def gained(self, queue: MessageQueue) -> None:
        self._events.append((QueueEvent.GAINED, queue))

    def lost(self, queue: MessageQueue, *, tell: bool) -> None:
        """Record that a queue is no longer read; announced only if its gain was announced and `tell` is set."""
        if queue not in self._announced:
            self._events = [item for item in self._events if item != (QueueEvent.GAINED, queue)]
        elif tell:
            self._events.append((QueueEvent.LOST, queue))
        self._announced.discard(queue)

    def reset(self, reader: QueueReader, reset: OffsetReset) -> None:
        self._resets.append((reader, reset))

    def unannounce(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return the queues whose gain was announced, and suppress the announcement of their loss."""
        known = self._announced & set(queues)
        self._announced -= known
        return sorted(known)

    def take(self) -> list[OffsetReset]:
        """Move the pending changes aside for `announce`; return the resets among them."""
        if not (self._taken or self._taken_resets):
            resets = [reset for reader, reset in self._resets if self._readers.get(reader.queue) is reader]
            self._taken, self._taken_resets = self._events, resets
            self._events, self._resets = [], []
            self.missed_messages += sum(reset.missed for reset in resets)
            gained = {queue for event, queue in self._taken if event is QueueEvent.GAINED}
            self._announced |= gained & self._readers.keys()
        return [*self._taken_resets]

    def announce(
        self, announce: Callable[[QueueEvent, list[MessageQueue]], None], offset_reset: Callable[[OffsetReset], None]
    ) -> None:
        """Call the user's callbacks. On the polling thread."""
        for event, together in itertools.groupby([*self._taken], key=lambda item: item[0]):
            queues = [queue for _, queue in together]
            announce(event, queues)
            del self._taken[: len(queues)]
        while self._taken_resets:
            offset_reset(self._taken_resets[0])
            del self._taken_resets[0]
