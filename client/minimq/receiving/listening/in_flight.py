"""The messages of leased queues that a push consumer has in flight, and the offset from which its group goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from minimq.receiving.listening.source import Delivery
from minimq.receiving.member_state import Grant
from minimq.receiving.received import ReceivedMessage
from minimq_common.model import MessageQueue


class InFlightLimits(NamedTuple):
    """The limits of one queue: at any of them no more of it is taken."""

    messages: int
    #: Bytes of their bodies.
    size: int
    #: Offsets from the first message that is not finished to the last one that was taken: so many may have to be read
    #: again after a crash.
    span: int


class Suspects(NamedTuple):
    """Messages of which one may have ended the member that had them: while they are delivered, nothing else is."""

    #: Offset from which the queue was granted.
    first: int
    #: How often members that died had the messages up to `near`.
    tries: int
    #: End of the messages that are most likely to have ended a member; they are delivered one by one.
    near: int
    #: End of all messages that one of these members may have had.
    end: int
    #: A member has told `near`; else it is as much as its threads may have had.
    known: bool = False

    @classmethod
    def of(cls, lease: Grant, most: int) -> Suspects:
        """Return those of a queue that was granted."""
        near = lease.in_hand_end or min(lease.offset + most, lease.queue_end)
        return cls(lease.offset, lease.tries, near, max(near, lease.queue_end), known=bool(lease.in_hand_end))

    def tries_of(self, offset: int) -> int:
        """Return how often a message was delivered to members that died, as far as is known; 0 if it is no suspect."""
        return self.tries if offset < self.near else int(offset < self.end)

    def is_found(self, offset: int) -> bool:
        """Tell whether a message was the only one that a member had that died, and is not merely one of several."""
        return self.known and self.tries > 1 and offset == self.first and self.near == offset + 1


_NONE = Suspects(0, 0, 0, 0)


class LeasedDelivery(Delivery):
    """Messages of a leased queue, whose offsets are in flight until they are finished."""

    __slots__ = ("following", "size", "work")

    def __init__(self, messages: Sequence[ReceivedMessage], work: _QueueWork) -> None:
        super().__init__(messages[0].queue, messages)
        #: Bytes of their bodies.
        self.size = sum(len(message.body) for message in messages)
        #: Waits until this one is finished, in an orderly consumer.
        self.following: LeasedDelivery | None = None
        #: The queue as it was when this was made.
        self.work = work


class _QueueWork:
    __slots__ = ("end", "in_hand", "messages", "size", "suspects")

    def __init__(self, offset: int, suspects: Suspects) -> None:
        self.messages = self.size = 0
        #: Offset behind what was taken, or is passed over.
        self.end = offset
        self.suspects = suspects
        #: In the order of their offsets.
        self.in_hand: dict[LeasedDelivery, None] = {}

    @property
    def commit_position(self) -> int:
        # The lowest message that is not finished: they may be finished in any order, and none is ever passed over.
        lowest = next(iter(self.in_hand), None)
        return self.end if lowest is None else lowest.messages[0].queue_offset

    def is_full(self, limits: InFlightLimits) -> bool:
        # What is taken while it is not may go beyond the limits, once.
        span = self.end - self.commit_position
        return self.messages >= limits.messages or self.size >= limits.size or span >= limits.span

    def count(self, delivery: LeasedDelivery, sign: int = 1) -> None:
        self.messages += sign * len(delivery.messages)
        self.size += sign * delivery.size


class InFlight:
    """The leased queues of a consumer, and what is in flight of each."""

    def __init__(self, limits: InFlightLimits, *, one_at_a_time: bool) -> None:
        self._limits = limits
        self._one_at_a_time = one_at_a_time
        self._queues: dict[MessageQueue, _QueueWork] = {}
        #: Those of which nothing is to be taken now. Brought up to date with each change of one: to look at all of them
        #: for each batch takes more time than the batch.
        self.blocked: set[MessageQueue] = set()
        #: Queues that may have suspects.
        self._suspect: set[MessageQueue] = set()

    # ---- queues ---------------------------------------------------------------------------------

    def start(self, queue: MessageQueue, offset: int, suspects: Suspects = _NONE) -> None:
        """Begin to account for a queue that is read from an offset on."""
        self.drop([queue])
        self._queues[queue] = _QueueWork(offset, suspects)
        if suspects.tries:
            self._suspect.add(queue)

    def start_over(self, queue: MessageQueue, end: int) -> int | None:
        """Forget what is in flight of a queue that has shrunk; return where to read again, None if it has left."""
        work = self._queues.get(queue)
        if work is None:
            return None
        offset = min(work.commit_position, end)
        self.start(queue, offset)
        return offset

    def drop(self, queues: Iterable[MessageQueue]) -> None:
        """Forget queues that are read no more, with their messages."""
        for queue in queues:
            self._queues.pop(queue, None)
            self.blocked.discard(queue)
            self._suspect.discard(queue)

    def leave(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Release queues; return their commit positions."""
        gone = {queue: self._queues[queue].commit_position for queue in queues if queue in self._queues}
        self.drop(gone)
        return gone

    def suspects(self, *, near_only: bool) -> dict[MessageQueue, Suspects]:
        """Return the queues with suspects; if so wanted, only those with suspects that are to be delivered alone."""
        for queue in [*self._suspect]:
            work = self._queues[queue]
            if work.commit_position >= (work.suspects.near if near_only else work.suspects.end):
                self._suspect.discard(queue)
        return {queue: self._queues[queue].suspects for queue in self._suspect}

    def offsets(self, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the commit positions of all queues, which are read up to these positions."""
        for queue, position in positions.items():
            if (work := self._queues.get(queue)) is not None:
                work.end = max(work.end, position)
                self._update(queue, work)
        return {queue: work.commit_position for queue, work in self._queues.items()}

    def of_queue(self, queue: MessageQueue) -> tuple[int, int]:
        """Return how many messages of a queue are in flight, and the bytes of their bodies."""
        work = self._queues.get(queue)
        return (work.messages, work.size) if work else (0, 0)

    def _update(self, queue: MessageQueue, work: _QueueWork) -> None:
        if work.in_hand if self._one_at_a_time else work.is_full(self._limits):
            self.blocked.add(queue)
        else:
            self.blocked.discard(queue)

    # ---- deliveries -----------------------------------------------------------------------------

    def take(self, parts: Sequence[Sequence[ReceivedMessage]]) -> list[LeasedDelivery]:
        """Account for messages of a queue behind all earlier ones; return the deliveries, one for each part."""
        work = self._queues[parts[0][0].queue]
        deliveries = [LeasedDelivery(part, work) for part in parts]
        for delivery in deliveries:
            work.count(delivery)
            work.in_hand[delivery] = None
        work.end = parts[-1][-1].queue_offset + 1
        self._update(deliveries[0].queue, work)
        return deliveries

    def is_current(self, delivery: LeasedDelivery) -> bool:
        """Tell whether the queue of a delivery is still this consumer's, as it was when that was made."""
        return delivery.work is self._queues.get(delivery.queue)

    def finish(self, delivery: LeasedDelivery) -> LeasedDelivery | None:
        """Finish all messages of a current delivery; return the one that has waited for that."""
        del delivery.work.in_hand[delivery]
        delivery.work.count(delivery, -1)
        self._update(delivery.queue, delivery.work)
        return delivery.following

    def narrow(self, delivery: LeasedDelivery, messages: Sequence[ReceivedMessage]) -> None:
        """Keep only these messages of a current delivery in flight."""
        delivery.work.count(delivery, -1)
        delivery.messages, delivery.size = messages, sum(len(message.body) for message in messages)
        delivery.work.count(delivery)
        self._update(delivery.queue, delivery.work)

    def split(self, delivery: LeasedDelivery, messages: Sequence[ReceivedMessage]) -> list[LeasedDelivery]:
        """Give each of these messages of a current delivery one of its own: it must not suffer for others.

        Where a queue has one call at a time, the first is returned, and each waits for the one before it.
        """
        work = delivery.work
        # Others: a thread that hangs may still have this one.
        again = [LeasedDelivery([message], work) for message in messages]
        work.count(delivery, -1)
        for one in again:
            work.count(one)
        in_hand, work.in_hand = work.in_hand, {}
        for each in in_hand:
            work.in_hand |= dict.fromkeys(again if each is delivery else (each,))
        self._update(delivery.queue, work)
        if self._one_at_a_time:
            for one, following in pairwise(again):
                one.following = following
            again[-1].following = delivery.following
            del again[1:]
        return again
