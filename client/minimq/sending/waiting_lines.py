"""What waits to be sent, in lines: in which order it leaves, and what waits for its next try."""

from __future__ import annotations

import heapq
from collections import deque
from typing import NamedTuple

from minimq.sending.outgoing import Lane, OutgoingBatch, PendingMessage
from minimq.sending.placement import BUSY, Place, Placement
from minimq_common.model import MessageQueue


class _LineKey(NamedTuple):
    topic: str
    queue: MessageQueue | None
    avoid: str | None


class WaitingLines:
    """The lanes of single messages, the lines of sealed batches, and the batches that wait for a later try.

    Not thread-safe: guarded by the lock of its `Dispatcher`.

    Args:
        placement: knows whether there is a place.
        batch_messages: most messages that leave a lane together.
        batch_bytes: size in bytes at which those are a full batch.
    """

    def __init__(self, placement: Placement, batch_messages: int, batch_bytes: int) -> None:
        self._placement = placement
        self._batch_messages = batch_messages
        self._batch_bytes = batch_bytes
        self._lanes: dict[tuple[str, MessageQueue | None], Lane] = {}
        #: Sealed batches in line, by all that decides whether there is a place for them.
        self._batches: dict[_LineKey, deque[OutgoingBatch]] = {}
        self._delayed: list[tuple[float, int, OutgoingBatch]] = []

    def add_message(self, topic: str, queue: MessageQueue | None, item: PendingMessage) -> None:
        """Let a message wait behind those for the same destination."""
        lane = self._lanes.get((topic, queue))
        if lane is None:
            lane = self._lanes[topic, queue] = Lane(topic, queue)
        lane.pending.append(item)

    def add_batch(self, outgoing: OutgoingBatch) -> None:
        """Let a new batch wait behind those for the same destination."""
        self._line_of(outgoing).append(outgoing)

    def try_again(self, outgoing: OutgoingBatch, at: float | None) -> None:
        """Let a batch that failed wait for its next try: at a time, or first in its line."""
        if at is None:
            self._line_of(outgoing).appendleft(outgoing)
        else:
            heapq.heappush(self._delayed, (at, outgoing.sequence, outgoing))

    def due(self, now: float) -> None:
        """Put the batches whose time has come first in their lines."""
        while self._delayed and self._delayed[0][0] <= now:
            self.try_again(heapq.heappop(self._delayed)[2], None)

    def next(self, now: float) -> tuple[OutgoingBatch | Lane, Place | None] | None:
        """Take the next thing to send out of its line, with its place.

        The place is None when no broker takes it. Returns None when everything has to wait.
        """
        for line_key, line in self._batches.items():
            place = self._placement.take(*line_key, now)
            if place is not BUSY:
                outgoing = line.popleft()
                if not line:
                    del self._batches[line_key]
                return outgoing, place
        for key, lane in self._lanes.items():
            place = self._placement.take(lane.topic, lane.queue, None, now)
            if place is not BUSY:
                del self._lanes[key]
                taken = lane.take(self._batch_messages, self._batch_bytes)
                if lane.pending:
                    self._lanes[key] = lane  # at the end: each lane gets its turn
                return taken, place
        return None

    def clear(self) -> list[OutgoingBatch | Lane]:
        """Take everything out, in no order."""
        left: list[OutgoingBatch | Lane] = [outgoing for line in self._batches.values() for outgoing in line]
        left += [outgoing for _, _, outgoing in self._delayed]
        left += self._lanes.values()
        self._batches.clear()
        self._delayed.clear()
        self._lanes.clear()
        return left

    def _line_of(self, outgoing: OutgoingBatch) -> deque[OutgoingBatch]:
        return self._batches.setdefault(_LineKey(outgoing.topic, outgoing.queue, outgoing.last_broker), deque())
