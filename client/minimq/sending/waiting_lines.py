"""What waits to be sent, in lines: what may go next, and what waits for its next try.

There is one line for each destination, which is a topic or a queue chosen by the caller, and in it everything has the
order in which it was handed in: single messages gather at its end, and leave together as one batch. From a line for a
chosen queue nothing leaves while the batch before is on its way or waits for its next try, so that nothing overtakes.
A batch that may go anywhere, and failed at one broker, waits in a line of its own kind: it must not hold up those that
may still go there.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import NamedTuple

from minimq.sending.outgoing import Lane, OutgoingBatch, PendingMessage
from minimq.sending.placement import Place, Placement
from minimq_common.errors import MiniMQError
from minimq_common.model import MessageQueue


class Departure(NamedTuple):
    """What leaves its line: to a place, or, when there is none, for a reason."""

    what: OutgoingBatch | Lane
    place: Place | None
    reason: MiniMQError | None


class _Key(NamedTuple):
    topic: str
    queue: MessageQueue | None
    avoid: str | None


class _Line:
    __slots__ = ("items", "key", "under_way")

    def __init__(self, key: _Key) -> None:
        self.key = key
        #: Messages join the last one if it is a lane: what follows a sealed batch begins another.
        self.items: deque[OutgoingBatch | Lane] = deque()
        #: Whether a batch for a chosen queue has left and has no outcome yet.
        self.under_way = False


class WaitingLines:
    """All lines of one producer. Not thread-safe: guarded by the lock of its `Dispatcher`.

    Args:
        placement: knows whether there is a place.
        batch_messages: most messages that leave a lane together.
        batch_bytes: size in bytes at which those are a full batch.
        spread_messages: fewest messages that leave a lane together while more wait there.
    """

    def __init__(self, placement: Placement, batch_messages: int, batch_bytes: int, spread_messages: int) -> None:
        self._placement = placement
        self._batch_messages = batch_messages
        self._batch_bytes = batch_bytes
        self._spread_messages = spread_messages
        self._lines: dict[_Key, _Line] = {}
        #: Lines from which something may leave, by the broker it has to go to (None: any). All take turns, so that a
        #: flood for one destination does not keep the others waiting.
        self._ready: dict[str | None, dict[_Key, _Line]] = {}
        self._delayed: list[tuple[float, int, OutgoingBatch]] = []

    # ---- joining a line -------------------------------------------------------------------------

    def add_message(self, topic: str, queue: MessageQueue | None, item: PendingMessage) -> None:
        """Let a message wait behind everything for the same destination."""
        line = self._line(_Key(topic, queue, None))
        lane = line.items[-1] if line.items else None
        if not isinstance(lane, Lane):
            lane = Lane(topic, queue)
            line.items.append(lane)
        lane.pending.append(item)
        self._look_at(line)

    def add_batch(self, outgoing: OutgoingBatch) -> None:
        """Let a new batch wait behind everything for the same destination."""
        line = self._line(_Key(outgoing.topic, outgoing.queue, None))
        line.items.append(outgoing)
        self._look_at(line)

    def try_again(self, outgoing: OutgoingBatch, at: float | None) -> None:
        """Let a batch that has left wait for its next try: at a time, or as soon as there is a place."""
        if at is not None:
            heapq.heappush(self._delayed, (at, outgoing.sequence, outgoing))
            return
        if outgoing.queue is None:
            line = self._line(_Key(outgoing.topic, None, outgoing.avoid))
            line.items.append(outgoing)
        else:
            line = self._line(_Key(outgoing.topic, outgoing.queue, None))
            line.items.appendleft(outgoing)
            line.under_way = False
        self._look_at(line)

    def due(self, now: float) -> None:
        """Bring back the batches whose time has come."""
        while self._delayed and self._delayed[0][0] <= now:
            self.try_again(heapq.heappop(self._delayed)[2], None)

    # ---- leaving it -----------------------------------------------------------------------------

    def next(self, now: float) -> Departure | None:
        """Take out what leaves next; None when everything has to wait."""
        for broker, lines in self._ready.items():
            if not self._placement.has_room(broker):
                continue
            for line in lines.values():
                try:
                    place = self._placement.take(*line.key, now)
                except MiniMQError as reason:
                    return Departure(self._leave(line), None, reason)
                if place is not None:
                    return Departure(self._leave(line), place, None)
        return None

    def settled(self, outgoing: OutgoingBatch) -> None:
        """Note that a batch that has left will not come back: the next one for its chosen queue may go."""
        if outgoing.queue is not None:
            line = self._lines.get(_Key(outgoing.topic, outgoing.queue, None))
            if line is not None:
                line.under_way = False
                self._look_at(line)

    def take_older(self, topic: str, broker: str | None, than: float) -> list[OutgoingBatch | Lane]:
        """Take out what was handed in at a time or before it, and waits for a broker, or for any broker of a topic."""
        found: list[OutgoingBatch | Lane] = []
        lines = [
            line
            for line in self._lines.values()
            if _broker_of(line) == broker and (broker is not None or line.key.topic == topic)
        ]
        for line in lines:
            kept: deque[OutgoingBatch | Lane] = deque()
            for item in line.items:
                if isinstance(item, OutgoingBatch):
                    (found if item.handed_in <= than else kept).append(item)
                    continue
                older = Lane(line.key.topic, line.key.queue)
                while item.pending and item.pending[0].handed_in <= than:
                    older.pending.append(item.pending.popleft())
                if older.pending:
                    found.append(older)
                if item.pending:
                    kept.append(item)
            line.items = kept
            self._look_at(line)
        return found

    def clear(self) -> list[OutgoingBatch | Lane]:
        """Take everything out, in no order."""
        left: list[OutgoingBatch | Lane] = [item for line in self._lines.values() for item in line.items]
        left += [outgoing for _, _, outgoing in self._delayed]
        self._lines.clear()
        self._ready.clear()
        self._delayed.clear()
        return left

    def _leave(self, line: _Line) -> OutgoingBatch | Lane:
        what = line.items[0]
        if isinstance(what, Lane):
            what = what.take(self._most_messages(what), self._batch_bytes)
            if not _pending(line.items[0]):
                line.items.popleft()
        else:
            line.items.popleft()
        line.under_way = line.key.queue is not None
        self._rest(line)
        self._look_at(line)  # at the end of all turns
        return what

    def _most_messages(self, lane: Lane) -> int:
        """Return how many messages may leave a lane together.

        What may go anywhere is divided among the places there are, so that a burst does not end in one queue.
        """
        if lane.queue is not None:
            return self._batch_messages
        share = math.ceil(len(lane.pending) / self._placement.places(lane.topic))
        return min(self._batch_messages, max(share, self._spread_messages))

    # ---- which line may be left -----------------------------------------------------------------

    def _line(self, key: _Key) -> _Line:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(key)
        return line

    def _look_at(self, line: _Line) -> None:
        """Bring what is known of a line up to date."""
        if line.items and not line.under_way:
            self._ready.setdefault(_broker_of(line), {})[line.key] = line
            return
        self._rest(line)
        if not line.items and not line.under_way:
            self._lines.pop(line.key, None)

    def _rest(self, line: _Line) -> None:
        """Take a line out of its turn; its group of lines has had its turn as well."""
        broker = _broker_of(line)
        lines = self._ready.pop(broker, None)
        if lines is not None:
            lines.pop(line.key, None)
            if lines:
                self._ready[broker] = lines


def _broker_of(line: _Line) -> str | None:
    return line.key.queue.broker_name if line.key.queue is not None else None


def _pending(item: OutgoingBatch | Lane) -> bool:
    return isinstance(item, OutgoingBatch) or bool(item.pending)
