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


class _Range:
    __slots__ = ("first", "messages", "size")

    def __init__(self, first: int, messages: int, size: int) -> None:
        self.first = first
        self.messages = messages
        self.size = size


class ProcessQueue:
    """Ranges of offsets in hand.

    The commit position is the lowest offset that is not finished, so that messages may be finished in any order and
    none is ever passed over.
    """

    def __init__(self, offset: int) -> None:
        self.messages = 0
        self.size = 0
        self._end = offset
        #: By the offset at which each range began, in the order of the offsets.
        self._in_hand: dict[int, _Range] = {}

    @property
    def idle(self) -> bool:
        """True if nothing is in flight."""
        return not self._in_hand

    @property
    def commit_position(self) -> int:
        """Offset from which the group would go on."""
        lowest = next(iter(self._in_hand.values()), None)
        return self._end if lowest is None else lowest.first

    @property
    def span(self) -> int:
        """Offsets between the commit position and the end of what was taken."""
        return self._end - self.commit_position

    def is_full(self, limits: InFlightLimits) -> bool:
        """Tell whether no more may be taken. What is taken while it is not may go beyond the limits, once."""
        return self.messages >= limits.messages or self.size >= limits.size or self.span >= limits.span

    def begin(self, first: int, end: int, messages: int = 1, size: int = 0) -> None:
        """Offsets from `first` up to `end` are in hand, with so many messages; they come after all earlier ones."""
        self._in_hand[first] = _Range(first, messages, size)
        self._end = end
        self.messages += messages
        self.size += size

    def narrow(self, first: int, rest: int, messages: int, size: int) -> None:
        """Of the range that began at `first` only so many messages are left in hand, the first of them at `rest`."""
        found = self._in_hand[first]
        self.messages += messages - found.messages
        self.size += size - found.size
        found.first, found.messages, found.size = rest, messages, size

    def split(self, first: int, rest: Sequence[tuple[int, int]]) -> None:
        """Of the range that began at `first` only these messages are left, by offset and size: each is a range now."""
        found = self._in_hand[first]
        self.messages += len(rest) - found.messages
        self.size += sum(size for _, size in rest) - found.size
        parts = {offset: _Range(offset, 1, size) for offset, size in rest}
        ranges, self._in_hand = self._in_hand, {}
        for began_at, item in ranges.items():
            self._in_hand.update(parts if item is found else {began_at: item})

    def finish(self, first: int) -> None:
        """The range that began at `first` is finished. Nothing happens when it is not in hand."""
        found = self._in_hand.pop(first, None)
        if found is not None:
            self.messages -= found.messages
            self.size -= found.size

    def pass_over(self, end: int) -> None:
        """There is nothing to do with offsets up to `end` that were not in hand."""
        self._end = max(self._end, end)


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


class _QueueWork:
    __slots__ = ("ranges", "suspects")

    def __init__(self, offset: int, suspects: Suspects) -> None:
        self.ranges = ProcessQueue(offset)
        self.suspects = suspects


class LeasedDelivery(Delivery):
    """Messages of a leased queue, whose offsets are in flight until they are finished."""

    __slots__ = ("_work", "first", "following")

    def __init__(self, queue: MessageQueue, first: int, messages: Sequence[ReceivedMessage], work: _QueueWork) -> None:
        super().__init__(queue, messages)
        #: Offset by which the range is known.
        self.first = first
        #: Waits until this one is finished, in an orderly consumer.
        self.following: LeasedDelivery | None = None
        self._work = work

    def is_of(self, work: _QueueWork | None) -> bool:
        """Tell whether the queue is this consumer's as it was when this was made."""
        return self._work is work


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
        offset = min(work.ranges.commit_position, end)
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
        gone = {queue: self._queues[queue].ranges.commit_position for queue in queues if queue in self._queues}
        self.drop(gone)
        return gone

    def suspects(self, *, near_only: bool) -> dict[MessageQueue, Suspects]:
        """Return the queues with suspects; if so wanted, only those with suspects that are to be delivered alone."""
        for queue in [*self._suspect]:
            work = self._queues[queue]
            if work.ranges.commit_position >= (work.suspects.near if near_only else work.suspects.end):
                self._suspect.discard(queue)
        return {queue: self._queues[queue].suspects for queue in self._suspect}

    def offsets(self, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the commit positions of all queues, which are read up to these positions."""
        for queue, position in positions.items():
            if (work := self._queues.get(queue)) is not None:
                work.ranges.pass_over(position)
                self._update(queue, work)
        return {queue: work.ranges.commit_position for queue, work in self._queues.items()}

    def of_queue(self, queue: MessageQueue) -> tuple[int, int]:
        """Return how many messages of a queue are in flight, and the bytes of their bodies."""
        work = self._queues.get(queue)
        return (work.ranges.messages, work.ranges.size) if work else (0, 0)

    def _update(self, queue: MessageQueue, work: _QueueWork) -> None:
        if not work.ranges.idle if self._one_at_a_time else work.ranges.is_full(self._limits):
            self.blocked.add(queue)
        else:
            self.blocked.discard(queue)

    # ---- deliveries -----------------------------------------------------------------------------

    def take(self, parts: Sequence[Sequence[ReceivedMessage]]) -> list[LeasedDelivery]:
        """Account for messages of a queue; return the deliveries, one for each part."""
        deliveries = []
        for part in parts:
            queue, first = part[0].queue, part[0].queue_offset
            work = self._queues[queue]
            work.ranges.begin(first, part[-1].queue_offset + 1, len(part), _size(part))
            deliveries.append(LeasedDelivery(queue, first, part, work))
            self._update(queue, work)
        return deliveries

    def is_current(self, delivery: LeasedDelivery) -> bool:
        """Tell whether the queue of a delivery is still this consumer's, as it was when that was made."""
        return delivery.is_of(self._queues.get(delivery.queue))

    def finish(self, delivery: LeasedDelivery) -> LeasedDelivery | None:
        """Finish all messages of a current delivery; return the one that has waited for that."""
        work = self._queues[delivery.queue]
        work.ranges.finish(delivery.first)
        self._update(delivery.queue, work)
        return delivery.following

    def narrow(self, delivery: LeasedDelivery, messages: Sequence[ReceivedMessage]) -> None:
        """Keep only these messages of a current delivery in flight."""
        work = self._queues[delivery.queue]
        delivery.messages = messages
        work.ranges.narrow(delivery.first, messages[0].queue_offset, len(messages), _size(messages))
        self._update(delivery.queue, work)

    def split(self, delivery: LeasedDelivery, messages: Sequence[ReceivedMessage]) -> list[LeasedDelivery]:
        """Give each of these messages of a current delivery one of its own: it must not suffer for others.

        Where a queue has one call at a time, the first is returned, and each waits for the one before it.
        """
        work = self._queues[delivery.queue]
        work.ranges.split(delivery.first, [(message.queue_offset, len(message.body)) for message in messages])
        self._update(delivery.queue, work)
        # Others: a thread that hangs may still have this one.
        again = [LeasedDelivery(delivery.queue, message.queue_offset, [message], work) for message in messages]
        if self._one_at_a_time:
            for one, following in pairwise(again):
                one.following = following
            again[-1].following = delivery.following
            del again[1:]
        return again


def _size(messages: Sequence[ReceivedMessage]) -> int:
    return sum(len(message.body) for message in messages)
