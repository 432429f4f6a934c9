"""The batches that wait to be sent, by destination: the next ones, and those that wait for a retry.

There is one queue for each destination, which is a topic or a queue chosen by the caller, in the order of the sends:
single messages accumulate at its end, and are sent together as one batch. From a chosen queue nothing is sent while the
previous batch is in flight or waits for a retry, so that nothing overtakes. A batch that may go anywhere, and failed at
one broker, waits in a queue of its own: it must not block batches that may still go there.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import NamedTuple

from minimq.sending.due_times import DueBucket
from minimq.sending.pending_batch import PendingBatch, PendingMessage, Target
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.queue_selector import QueueSelector
from minimq_common.errors import MiniMQError
from minimq_common.model import MessageQueue


class _Key(NamedTuple):
    topic: str
    queue: MessageQueue | None
    avoid: str | None
    message_group: str | None
    due_bucket: DueBucket | None


def _own_key(batch: PendingBatch) -> _Key:
    return _Key(batch.topic, batch.queue, None, batch.message_group, batch.due_bucket)


class _Destination:
    __slots__ = ("batches", "broker", "key", "under_way")

    def __init__(self, key: _Key) -> None:
        self.key = key
        #: The required broker of everything in it; None for any.
        self.broker = key.queue.broker_name if key.queue is not None else None
        #: Messages join the last batch while it is open; after a closed one, a new one begins.
        self.batches: deque[PendingBatch] = deque()
        #: The batch for a chosen queue that is in flight.
        self.under_way: PendingBatch | None = None


class DestinationQueues:
    """All waiting batches of one producer. Not thread-safe: it belongs to a `RecordAccumulator`."""

    def __init__(self, selector: QueueSelector, options: ProducerOptions) -> None:
        self._selector = selector
        self._options = options
        self.destinations: dict[_Key, _Destination] = {}
        #: Destinations with something to send, by required broker (None: any). They take turns, so that a flood for one
        #: destination does not delay the others.
        self.ready: dict[str | None, dict[_Key, _Destination]] = {}
        self._retries: list[tuple[float, int, PendingBatch]] = []

    # ---- joining --------------------------------------------------------------------------------

    def add_message(self, item: PendingMessage) -> None:
        """Queue a message behind everything for the same destination; it joins the last batch if that is open."""
        message = item.message
        due_bucket = None if item.due is None else item.due.bucket
        key = (message.topic, item.queue, None, message.message_group, due_bucket)  # equal to a `_Key`
        destination = self.destinations.get(key)  # type: ignore[call-overload]
        if destination is not None and destination.batches and (last := destination.batches[-1]).number is None:
            last.messages.append(item)
            return
        if destination is None:
            destination = self._to(_Key(*key))
        batch = PendingBatch(message.topic, item.queue, deque((item,)), message.message_group, due_bucket)
        destination.batches.append(batch)
        self._update(destination)

    def add_batch(self, batch: PendingBatch) -> None:
        """Queue a new batch behind everything for the same destination."""
        destination = self._to(_own_key(batch))
        destination.batches.append(batch)
        self._update(destination)

    def pass_by(self, batch: PendingBatch) -> None:
        """Record that a batch for a chosen queue is sent without having waited."""
        self._to(_own_key(batch)).under_way = batch

    def try_again(self, batch: PendingBatch, at: float | None) -> None:
        """Queue a sent batch for a retry: at a time, or as soon as there is a target."""
        if at is not None:
            assert batch.number is not None
            heapq.heappush(self._retries, (at, batch.number.sequence, batch))
            return
        if batch.queue is None:
            destination = self._to(_Key(batch.topic, None, batch.avoid, None, None))
            destination.batches.append(batch)
        else:
            destination = self._to(_own_key(batch))
            destination.batches.appendleft(batch)
            destination.under_way = None
        self._update(destination)

    def bring_back(self, now: float) -> None:
        """Requeue the batches whose retry is due."""
        while self._retries and self._retries[0][0] <= now:
            self.try_again(heapq.heappop(self._retries)[2], None)

    # ---- leaving --------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """True if nothing waits."""
        return not self.destinations and not self._retries

    @property
    def next_retry(self) -> float:
        """The time of the next retry; infinite if none waits for one."""
        return self._retries[0][0] if self._retries else math.inf

    def next(self, now: float) -> tuple[PendingBatch, Target | MiniMQError] | None:
        """Remove and return the next batch to send, with its target or error; None if everything has to wait."""
        for broker, destinations in self.ready.items():
            if not self._selector.has_room(broker):
                continue
            for destination in destinations.values():
                try:
                    target = self._selector.take(*destination.key[:3], now)
                except MiniMQError as reason:
                    return self._leave(destination), reason
                if target is not None:
                    return self._leave(destination), target
        return None

    def completed(self, batch: PendingBatch) -> None:
        """Record the outcome of a batch for a chosen queue: if it was in flight, the next one may be sent."""
        destination = self.destinations.get(_own_key(batch))
        if destination is not None and destination.under_way is batch:
            destination.under_way = None
            self._update(destination)

    def take_older(self, topic: str, broker: str | None, than: float) -> list[PendingBatch]:
        """Remove and return everything accepted up to a time that waits for a broker, or for any broker of a topic."""
        found: list[PendingBatch] = []
        destinations = [
            destination
            for destination in self.destinations.values()
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

    def clear(self) -> list[PendingBatch]:
        """Remove and return everything, in any order."""
        left = [batch for destination in self.destinations.values() for batch in destination.batches]
        left += [batch for _, _, batch in self._retries]
        self.destinations.clear()
        self.ready.clear()
        self._retries.clear()
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
        """Return how many messages may be sent together.

        Messages that may go anywhere are divided among the available targets, so that a burst does not end up in one
        queue. The rest of a burst is not divided again: its parts would become ever smaller, and each batch has a cost.
        """
        if batch.queue is not None:
            return self._options.batch_messages
        part = math.ceil(len(batch.messages) / self._selector.capacity(batch.topic))
        batch.part = max(batch.part, part, self._options.spread_messages)
        return min(self._options.batch_messages, batch.part)

    # ---- turns ----------------------------------------------------------------------------------

    def _to(self, key: _Key) -> _Destination:
        destination = self.destinations.get(key)
        if destination is None:
            destination = self.destinations[key] = _Destination(key)
        return destination

    def _update(self, destination: _Destination) -> None:
        if destination.batches and destination.under_way is None:
            self.ready.setdefault(destination.broker, {})[destination.key] = destination
            return
        self._rest(destination)
        if not destination.batches and destination.under_way is None:
            self.destinations.pop(destination.key, None)

    def _rest(self, destination: _Destination) -> None:
        ready = self.ready.pop(destination.broker, None)
        if ready is not None:
            ready.pop(destination.key, None)
            if ready:
                self.ready[destination.broker] = ready
