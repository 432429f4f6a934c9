"""The messages of leased queues that a push consumer has in flight, and the offsets to commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

from minimq.consuming.received import ReceivedMessage
from minimq.features.listeners.source import Delivery, Source
from minimq_common.model import MessageQueue


class InFlightLimits(NamedTuple):
    """Limits; at any of them, no more messages of a queue are taken."""

    #: Of one queue: enough for many threads, and few enough to redeliver after a crash.
    messages: int = 4096
    #: Bytes of bodies in all queues, each of which has an equal share.
    size: int = 16 << 20
    #: Of one queue: distance in offsets from the first unfinished to the last taken message. Others of these may have
    #: finished, but are reread after a crash.
    span: int = 16_384


class LeasedDelivery(Delivery):
    __slots__ = ("following", "size", "work")

    def __init__(self, source: Source[Any], messages: Sequence[ReceivedMessage], work: _QueueWork) -> None:
        super().__init__(source, messages)
        #: Bytes of the bodies.
        self.size = sum(len(message.body) for message in messages)
        #: In an orderly consumer, the delivery that waits until this one is finished.
        self.following: LeasedDelivery | None = None
        #: State of the queue; stale once `InFlight` has another one for the queue.
        self.work = work


class _QueueWork:
    __slots__ = ("end", "in_flight", "messages", "size")

    def __init__(self, offset: int) -> None:
        self.messages = self.size = 0
        #: Offset after the messages that were taken or filtered out.
        self.end = offset
        #: Ordered by offset.
        self.in_flight: dict[LeasedDelivery, None] = {}

    @property
    def commit_position(self) -> int:
        # The lowest unfinished offset: messages finish in any order, and a commit must not pass an unfinished one.
        lowest = next(iter(self.in_flight), None)
        return self.end if lowest is None else lowest.messages[0].queue_offset

    def is_full(self, limits: InFlightLimits, share: int) -> bool:
        # The last take before this may exceed the limits.
        span = self.end - self.commit_position
        return self.messages >= limits.messages or self.size >= share or span >= limits.span


class InFlight:
    """Tracks the messages in flight of each leased queue, and from them the offset to commit."""

    def __init__(self, source: Source[Any], limits: InFlightLimits, *, one_at_a_time: bool) -> None:
        self._source = source
        self._limits = limits
        self._one_at_a_time = one_at_a_time
        self._queues: dict[MessageQueue, _QueueWork] = {}
        #: Bytes of the bodies in flight of all queues.
        self._size = 0
        #: Queues from which nothing may be taken now. Updated incrementally: a scan of all queues for each batch would
        #: cost more than the batch.
        self.blocked: set[MessageQueue] = set()

    # ---- queues ---------------------------------------------------------------------------------

    def start(self, queue: MessageQueue, offset: int) -> None:
        self.drop([queue])
        self._queues[queue] = _QueueWork(offset)

    def start_over(self, queue: MessageQueue, end: int) -> int | None:
        """Forget the messages in flight of a queue that was cut at `end`; return the offset to reread from, if any."""
        work = self._queues.get(queue)
        if work is None:
            return None
        offset = min(work.commit_position, end)
        self.start(queue, offset)
        return offset

    def drop(self, queues: Iterable[MessageQueue]) -> None:
        """Forget queues that are no longer read, with their messages in flight."""
        for queue in queues:
            if (work := self._queues.pop(queue, None)) is not None:
                self._size -= work.size
            self.blocked.discard(queue)

    def leave(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Forget queues; return their offsets to commit."""
        gone = {queue: self._queues[queue].commit_position for queue in queues if queue in self._queues}
        self.drop(gone)
        return gone

    def offsets(self, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the offsets to commit of all queues, whose readers are at `positions`."""
        for queue, position in positions.items():
            if (work := self._queues.get(queue)) is not None:
                work.end = max(work.end, position)
                self._update(queue, work)
        return {queue: work.commit_position for queue, work in self._queues.items()}

    def _update(self, queue: MessageQueue, work: _QueueWork) -> None:
        share = max(self._limits.size // max(len(self._queues), 1), 1)
        if work.in_flight if self._one_at_a_time else work.is_full(self._limits, share):
            self.blocked.add(queue)
        else:
            self.blocked.discard(queue)

    @property
    def is_full(self) -> bool:
        """True while nothing may be taken from any queue."""
        return self._size >= self._limits.size

    # ---- deliveries -----------------------------------------------------------------------------

    def _count(self, delivery: LeasedDelivery, sign: int = 1) -> None:
        delivery.work.messages += sign * len(delivery.messages)
        delivery.work.size += sign * delivery.size
        self._size += sign * delivery.size

    def take(self, messages: Sequence[ReceivedMessage]) -> LeasedDelivery:
        """Track messages that follow all earlier ones of their queue; return their delivery."""
        work = self._queues[messages[0].queue]
        delivery = LeasedDelivery(self._source, messages, work)
        self._count(delivery)
        work.in_flight[delivery] = None
        work.end = messages[-1].queue_offset + 1
        self._update(delivery.queue, work)
        return delivery

    def is_current(self, delivery: LeasedDelivery) -> bool:
        """Return whether the queue of a delivery has been tracked without a break since the delivery was made."""
        return delivery.work is self._queues.get(delivery.queue)

    def commit_position_after(self, delivery: LeasedDelivery) -> int | None:
        """Return the offset to commit once a current delivery is finished; None while an earlier one is in flight."""
        lowest, *following = islice(delivery.work.in_flight, 2)
        if lowest is not delivery:
            return None
        return following[0].messages[0].queue_offset if following else delivery.work.end

    def finish(self, delivery: LeasedDelivery) -> LeasedDelivery | None:
        """Finish a current delivery; return the delivery that waits for it, if any."""
        del delivery.work.in_flight[delivery]
        self._count(delivery, -1)
        self._update(delivery.queue, delivery.work)
        return delivery.following

    def narrow(self, delivery: LeasedDelivery, messages: Sequence[ReceivedMessage]) -> None:
        self._count(delivery, -1)
        delivery.messages, delivery.size = messages, sum(len(message.body) for message in messages)
        self._count(delivery)
        self._update(delivery.queue, delivery.work)

    def split(self, delivery: LeasedDelivery, messages: Sequence[ReceivedMessage]) -> list[LeasedDelivery]:
        """Replace a current delivery by one for each of these messages, so that a bad message fails alone.

        If queues have one call at a time, returns the first delivery only; each of the others follows its predecessor.
        """
        work = delivery.work
        # New objects, since a hanging thread may still have the old delivery.
        again = [LeasedDelivery(self._source, [message], work) for message in messages]
        self._count(delivery, -1)
        for one in again:
            self._count(one)
        in_flight, work.in_flight = work.in_flight, {}
        for each in in_flight:
            work.in_flight |= dict.fromkeys(again if each is delivery else (each,))
        self._update(delivery.queue, work)
        if self._one_at_a_time:
            for one, following in pairwise(again):
                one.following = following
            again[-1].following = delivery.following
            del again[1:]
        return again
