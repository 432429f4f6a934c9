"""The batches that wait to be sent, by destination: those that may go next, and those that wait for their next try.

There is one queue for each destination, which is a topic or a queue chosen by the caller, and in it everything has the
order in which it was handed in: single messages gather at its end, and leave together as one batch. From that for a
chosen queue nothing leaves while the batch before is in flight or waits for its next try, so that nothing overtakes.
A batch that may go anywhere, and failed at one broker, waits in one of its own kind: it must not hold up those that
may still go there.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import NamedTuple

from minimq.sending.pending_batch import PendingBatch, PendingMessage, Target
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.queue_selector import QueueSelector
from minimq_common.errors import MiniMQError
from minimq_common.model import MessageQueue


class _Key(NamedTuple):
    topic: str
    queue: MessageQueue | None
    avoid: str | None


class _Destination:
    __slots__ = ("batches", "broker", "key", "under_way")

    def __init__(self, key: _Key) -> None:
        self.key = key
        #: The broker to which everything in it must go; None for any.
        self.broker = key.queue.broker_name if key.queue is not None else None
        #: Messages join the last one as long as it is open: what follows a closed one begins another.
        self.batches: deque[PendingBatch] = deque()
        #: The batch for a chosen queue that has left and has no outcome yet.
        self.under_way: PendingBatch | None = None


class DestinationQueues:
    """All batches of one producer that wait. Not thread-safe: it belongs to a `RecordAccumulator`.

    Args:
        selector: knows whether there is a place.
        options: of the producer.
    """

    def __init__(self, selector: QueueSelector, options: ProducerOptions) -> None:
        self._selector = selector
        self._options = options
        self._destinations: dict[_Key, _Destination] = {}
        #: Those from which something may leave, by the broker it has to go to (None: any). All take turns, so that a
        #: flood for one destination does not keep the others waiting.
        self._ready: dict[str | None, dict[_Key, _Destination]] = {}
        self._delayed: list[tuple[float, int, PendingBatch]] = []

    # ---- joining --------------------------------------------------------------------------------

    def join(self, topic: str, queue: MessageQueue | None, item: PendingMessage) -> bool:
        """Let a message join the open batch of its destination; return whether there is one.

        Nothing else changes by that: whoever makes room for that batch, or has, sends the message with it.
        """
        destination = self._destinations.get((topic, queue, None))  # type: ignore[call-overload]  # equal to a `_Key`
        if destination is None or not destination.batches:
            return False
        last = destination.batches[-1]
        if last.number is not None:
            return False
        last.messages.append(item)
        return True

    def add_message(self, item: PendingMessage) -> None:
        """Let a message that joins no batch wait behind everything for the same destination."""
        topic, queue = item.message.topic, item.queue
        destination = self._to(_Key(topic, queue, None))
        destination.batches.append(PendingBatch(topic, queue, (item,)))
        self._update(destination)

    def add_batch(self, batch: PendingBatch) -> None:
        """Let a new batch wait behind everything for the same destination."""
        destination = self._to(_Key(batch.topic, batch.queue, None))
        destination.batches.append(batch)
        self._update(destination)

    def is_free(self, topic: str, queue: MessageQueue | None) -> bool:
        """Tell whether a message for this destination would neither overtake anything nor take its turn."""
        return not self._ready and (topic, queue, None) not in self._destinations

    def pass_by(self, batch: PendingBatch) -> None:
        """Note that a batch leaves without having waited."""
        if batch.queue is not None:
            self._to(_Key(batch.topic, batch.queue, None)).under_way = batch

    def try_again(self, batch: PendingBatch, at: float | None) -> None:
        """Let a batch that has left wait for its next try: at a time, or as soon as there is a place."""
        if at is not None:
            assert batch.number is not None
            heapq.heappush(self._delayed, (at, batch.number.sequence, batch))
            return
        if batch.queue is None:
            destination = self._to(_Key(batch.topic, None, batch.avoid))
            destination.batches.append(batch)
        else:
            destination = self._to(_Key(batch.topic, batch.queue, None))
            destination.batches.appendleft(batch)
            destination.under_way = None
        self._update(destination)

    def due(self, now: float) -> None:
        """Bring back the batches whose time has come."""
        while self._delayed and self._delayed[0][0] <= now:
            self.try_again(heapq.heappop(self._delayed)[2], None)

    # ---- leaving --------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """True if something could leave as soon as there is room."""
        return bool(self._ready)

    @property
    def is_empty(self) -> bool:
        """True if nothing waits."""
        return not self._destinations and not self._delayed

    @property
    def next_due(self) -> float:
        """When `due` brings the next batch back; infinite when none is delayed."""
        return self._delayed[0][0] if self._delayed else math.inf

    def next(self, now: float) -> tuple[PendingBatch, Target | MiniMQError] | None:
        """Take out the batch that leaves next, to a target or for a reason; return None when everything has to wait."""
        for broker, destinations in self._ready.items():
            if not self._selector.has_room(broker):
                continue
            for destination in destinations.values():
                try:
                    target = self._selector.take(*destination.key, now)
                except MiniMQError as reason:
                    return self._leave(destination), reason
                if target is not None:
                    return self._leave(destination), target
        return None

    def completed(self, batch: PendingBatch) -> None:
        """Note that a batch has its outcome: if it had left, the next one for its chosen queue may go."""
        if batch.queue is not None:
            destination = self._destinations.get(_Key(batch.topic, batch.queue, None))
            if destination is not None and destination.under_way is batch:
                destination.under_way = None
                self._update(destination)

    def take_older(self, topic: str, broker: str | None, than: float) -> list[PendingBatch]:
        """Take out what was handed in at a time or before it, and waits for a broker, or for any broker of a topic."""
        found: list[PendingBatch] = []
        destinations = [
            destination
            for destination in self._destinations.values()
            if destination.broker == broker and (broker is not None or destination.key.topic == topic)
        ]
        for destination in destinations:
            kept: deque[PendingBatch] = deque()
            for batch in destination.batches:
                if batch.number is not None:
                    (found if batch.handed_in <= than else kept).append(batch)
                    continue
                older = batch.take_older(than)
                found += [older] if older.messages else []
                kept.extend([batch] if batch.messages else [])
            destination.batches = kept
            self._update(destination)
        return found

    def repair(self) -> None:
        """Bring up to date what may leave, after Ctrl-C in a call."""
        for destination in [*self._destinations.values()]:
            self._update(destination)

    def all(self) -> list[PendingBatch]:
        """Return everything that waits, in no order."""
        waiting = [batch for destination in self._destinations.values() for batch in destination.batches]
        return waiting + [batch for _, _, batch in self._delayed]

    def clear(self) -> list[PendingBatch]:
        """Take everything out, in no order."""
        left = self.all()
        self._destinations.clear()
        self._ready.clear()
        self._delayed.clear()
        return left

    def _leave(self, destination: _Destination) -> PendingBatch:
        batch = destination.batches[0]
        if batch.number is None:
            rest = batch
            batch = rest.take(self._most_messages(rest), self._options.batch_bytes)
            if not rest.messages:
                destination.batches.popleft()
        else:
            destination.batches.popleft()
        if destination.key.queue is not None:
            destination.under_way = batch
        self._rest(destination)
        self._update(destination)  # at the end of all turns
        return batch

    def _most_messages(self, batch: PendingBatch) -> int:
        """Return how many messages may leave together.

        What may go anywhere is divided among the places there are, so that a burst does not end in one queue. The
        rest of a burst is not divided again: its parts would become ever smaller, and each batch has a price.
        """
        if batch.queue is not None:
            return self._options.batch_messages
        part = math.ceil(len(batch.messages) / self._selector.capacity(batch.topic))
        batch.part = max(batch.part, part, self._options.spread_messages)
        return min(self._options.batch_messages, batch.part)

    # ---- turns ----------------------------------------------------------------------------------

    def _to(self, key: _Key) -> _Destination:
        destination = self._destinations.get(key)
        if destination is None:
            destination = self._destinations[key] = _Destination(key)
        return destination

    def _update(self, destination: _Destination) -> None:
        """Bring up to date whether something may leave, and forget a destination that nothing concerns any more."""
        if destination.batches and destination.under_way is None:
            self._ready.setdefault(destination.broker, {})[destination.key] = destination
            return
        self._rest(destination)
        if not destination.batches and destination.under_way is None:
            self._destinations.pop(destination.key, None)

    def _rest(self, destination: _Destination) -> None:
        """End the turn of a destination; the others of its broker have had their turn as well."""
        ready = self._ready.pop(destination.broker, None)
        if ready is not None:
            ready.pop(destination.key, None)
            if ready:
                self._ready[destination.broker] = ready
