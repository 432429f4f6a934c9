"""The waiting batches of a producer, by destination. Pure; times are seconds on one clock, passed in by the caller."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from minimq.sending.pending_batch import PendingBatch, PendingMessage, Target
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.queue_selector import QueueSelector
from minimq_common.errors import MinimqError
from minimq_common.model import MessageQueue

#: Messages of the smallest batch into which others are divided, among the queues: each batch has a fixed cost.
MIN_SPLIT_MESSAGES = 32


class _Key(NamedTuple):
    topic: str
    queue: MessageQueue | None
    avoid: str | None
    may_move: bool
    message_group: str | None
    bucket: Hashable


def _own_key(batch: PendingBatch) -> _Key:
    return _Key(batch.topic, batch.queue, None, batch.may_move, batch.message_group, batch.bucket)


class _Destination:
    __slots__ = ("batches", "broker", "key", "under_way")

    def __init__(self, key: _Key) -> None:
        self.key = key
        #: The broker to which all its batches must go; None for any.
        self.broker = key.queue.broker_name if key.queue is not None else None
        #: Messages join the last batch while that is open; a closed batch has its number.
        self.batches: deque[PendingBatch] = deque()
        #: The batch in flight, if the queue is fixed: then one at a time keeps the order.
        self.under_way: PendingBatch | None = None


class DestinationQueues:
    """The waiting batches of one producer, by destination. Not thread-safe: owned by a `RecordAccumulator`."""

    def __init__(self, selector: QueueSelector, options: ProducerOptions) -> None:
        self._selector = selector
        self._options = options
        self.destinations: dict[_Key, _Destination] = {}
        #: Destinations with a batch to send, by required broker (None: any). They take turns, so that many messages for
        #: one destination do not delay the others.
        self.ready: dict[str | None, dict[_Key, _Destination]] = {}
        self._retries: list[tuple[float, int, PendingBatch]] = []

    # ---- joining --------------------------------------------------------------------------------

    def add_message(self, item: PendingMessage) -> None:
        """Append a message to the open batch of its destination, or begin one."""
        message = item.message
        bucket = None if item.hold is None else item.hold.bucket
        key = (message.topic, item.queue, None, item.may_move, message.message_group, bucket)  # equal to a `_Key`
        destination = self.destinations.get(key)  # type: ignore[call-overload]
        if destination is not None and destination.batches and (last := destination.batches[-1]).number is None:
            last.messages.append(item)
            return
        if destination is None:
            destination = self._to(_Key(*key))
        batch = PendingBatch(
            message.topic, item.queue, deque((item,)), item.may_move, message.message_group, bucket, item.handed_in
        )
        destination.batches.append(batch)
        self._update(destination)

    def add_batch(self, batch: PendingBatch) -> None:
        destination = self._to(_own_key(batch))
        destination.batches.append(batch)
        self._update(destination)

    def record_sent(self, batch: PendingBatch) -> None:
        """Record that a batch for a fixed queue is sent without having been queued."""
        self._to(_own_key(batch)).under_way = batch

    def try_again(self, batch: PendingBatch, at: float | None) -> None:
        """Queue a batch for a retry at time `at`; None means as soon as there is a target."""
        if at is not None:
            assert batch.number is not None
            heapq.heappush(self._retries, (at, batch.number.sequence, batch))
            return
        if batch.queue is None:
            destination = self._to(_Key(batch.topic, None, batch.avoid, False, None, None))
            destination.batches.append(batch)
        else:
            destination = self._to(_own_key(batch))
            destination.batches.appendleft(batch)
            destination.under_way = None
        self._update(destination)

    def bring_back(self, now: float) -> None:
        while self._retries and self._retries[0][0] <= now:
            self.try_again(heapq.heappop(self._retries)[2], None)

    # ---- leaving --------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return not self.destinations and not self._retries

    @property
    def next_retry(self) -> float:
        """Time of the next retry; infinite if there is none."""
        return self._retries[0][0] if self._retries else math.inf

    def next(self, now: float) -> tuple[PendingBatch, Target | MinimqError] | None:
        """Remove and return the next batch, with its target or the reason why it has none; None if all must wait."""
        for broker, destinations in self.ready.items():
            if not self._selector.has_room(broker):
                continue
            for destination in destinations.values():
                try:
                    target = self._selector.take(*destination.key[:4], now)
                except MinimqError as reason:
                    return self._leave(destination), reason
                if target is not None:
                    return self._leave(destination), target
        return None

    def completed(self, batch: PendingBatch) -> None:
        """Record the outcome of a batch for a fixed queue: the next one may be sent."""
        destination = self.destinations.get(_own_key(batch))
        if destination is not None and destination.under_way is batch:
            destination.under_way = None
            self._update(destination)

    def take_older(self, topic: str, broker: str | None, than: float) -> list[PendingBatch]:
        """Remove and return batches accepted up to `than`: those bound to `broker` or, if None, those of `topic`."""
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
                kept += [batch] if batch.messages else []
            destination.batches = kept
            self._update(destination)
        return found

    def batches(self) -> Iterator[PendingBatch]:
        """Yield all batches, in any order."""
        for destination in self.destinations.values():
            yield from destination.batches
        for _, _, batch in self._retries:
            yield batch

    def clear(self) -> list[PendingBatch]:
        """Remove and return all batches, in any order."""
        left = [*self.batches()]
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
        self._update(destination)  # ready again, as the last in turn
        return batch

    def _most_messages(self, batch: PendingBatch) -> int:
        """Return how many messages may be sent together.

        A burst of messages without a fixed queue is divided among the available targets, so that it does not end up in
        one queue. Its rest is not divided again: batches would get ever smaller, and each has a fixed cost.
        """
        if batch.queue is not None:
            return self._options.batch_messages
        part = math.ceil(len(batch.messages) / self._selector.capacity(batch.topic))
        batch.part = max(batch.part, part, MIN_SPLIT_MESSAGES)
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
