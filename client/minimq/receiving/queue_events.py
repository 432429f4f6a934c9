"""The changes of queues that the callbacks report before messages are handed out, and errors in place of messages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from minimq.receiving.offset_reset import OffsetReset
from minimq.receiving.queue_decisions import QueueEvent
from minimq.receiving.queue_reader import QueueReader
from minimq_common.model import MessageQueue


class Announcement:
    """Changes that are being announced: the thread that polls removes each when the user has heard of it."""

    def __init__(
        self, events: list[tuple[QueueEvent, MessageQueue]], resets: list[tuple[QueueReader, OffsetReset]]
    ) -> None:
        self.events = events
        self.resets = resets

    def __bool__(self) -> bool:
        return bool(self.events or self.resets)

    def make(
        self,
        announce: Callable[[QueueEvent, list[MessageQueue]], None],
        offset_reset: Callable[[OffsetReset], None],
    ) -> None:
        """Call the user's callbacks."""
        for event, together in itertools.groupby(list(self.events), key=lambda item: item[0]):
            queues = [queue for _, queue in together]
            announce(event, queues)
            del self.events[: len(queues)]
        while self.resets:
            offset_reset(self.resets[0][1])
            del self.resets[0]


class QueueEvents:
    """The changes that the user has not heard of, in their order. Lives on the event loop of the connection."""

    def __init__(self, readers: Mapping[MessageQueue, QueueReader]) -> None:
        self._readers = readers
        self.missed_messages = 0
        self._events: list[tuple[QueueEvent, MessageQueue]] = []
        self._resets: list[tuple[QueueReader, OffsetReset]] = []
        #: The queues that were announced as gained.
        self._announced: set[MessageQueue] = set()
        #: The latest one. If its callbacks were interrupted, the rest of it is announced again.
        self._latest = Announcement([], [])

    @property
    def are_there(self) -> bool:
        """True if there is something to announce."""
        return bool(self._events or self._resets or self._latest)

    def gained(self, queue: MessageQueue) -> None:
        """Note that a queue is read now."""
        self._events.append((QueueEvent.GAINED, queue))

    def lost(self, queue: MessageQueue, *, tell: bool) -> None:
        """Note that a queue is read no more; announce it only if its beginning was announced."""
        if queue not in self._announced:
            self._events = [item for item in self._events if item != (QueueEvent.GAINED, queue)]
        elif tell:
            self._events.append((QueueEvent.LOST, queue))
        self._announced.discard(queue)

    def reset(self, reader: QueueReader, reset: OffsetReset) -> None:
        """Note that a reader goes on elsewhere."""
        self._resets.append((reader, reset))

    def unannounce(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return those of the queues that were announced as gained, and announce nothing more of them."""
        known = self._announced & set(queues)
        self._announced -= known
        return sorted(known)

    def take(self) -> Announcement:
        """Return what is to be announced."""
        if not self._latest:
            resets = [item for item in self._resets if self._readers.get(item[0].queue) is item[0]]
            self._latest = Announcement(self._events, resets)
            self._events, self._resets = [], []
            self.missed_messages += sum(reset.missed for _, reset in resets)
            gained = {queue for event, queue in self._latest.events if event is QueueEvent.GAINED}
            self._announced |= gained & self._readers.keys()
        return self._latest
