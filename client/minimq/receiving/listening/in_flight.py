"""The in-flight deliveries of a push consumer: from when their messages are taken until the listener is done."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

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
    """Ranges of offsets in hand. Not thread-safe.

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

    first: int
    tries: int
    near: int
    end: int
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
    """One queue from when it was granted until it left."""

    def __init__(self, offset: int, number: int, suspects: Suspects) -> None:
        self.suspects = suspects
        self.ranges = ProcessQueue(offset)
        #: One that was granted later has a larger one.
        self.number = number
        #: Calls that a thread has or will have; the others wait for their time.
        self.active = 0


class Delivery:
    """Messages of one queue and topic that are given to the listener together, again and again if need be."""

    def __init__(self, queue: MessageQueue, first: int, messages: Sequence[ReceivedMessage], work: _QueueWork) -> None:
        self.queue = queue
        self.messages = messages
        self.began_at: float | None = None
        self.given_up = False
        self.hangs = False
        self.gives_up = ""
        self.following: Delivery | None = None
        self._first = first
        self._work = work

    @property
    def first(self) -> int:
        """Offset by which the range of the call is known."""
        return self._first

    @property
    def work(self) -> _QueueWork:
        """The queue's work that the call belongs to."""
        return self._work


class _Waiting(NamedTuple):
    due: float
    number: int
    delivery: Delivery


class InFlightDeliveries:
    """The deliveries in flight, and how far queues are. Thread-safe; nothing blocks but `wait`."""

    def __init__(self, limits: InFlightLimits, changed: Callable[[], None], *, one_at_a_time: bool) -> None:
        self._limits = limits
        self._one_at_a_time = one_at_a_time
        self._notify_changed = changed
        #: Protects everything below and all calls; notified when so many calls are over as somebody waits for.
        self._changed = threading.Condition()
        self._queues: dict[MessageQueue, _QueueWork] = {}
        #: Those of which nothing is to be taken now. Brought up to date with each change of one: to look at all of them
        #: for each batch takes more time than the batch.
        self._blocked: set[MessageQueue] = set()
        #: Queues that may have suspects.
        self._suspect: set[MessageQueue] = set()
        #: The latest number of a queue when `blocked` was asked for last, and now.
        self._seen = self._latest = 0
        self._active: dict[Delivery, None] = {}
        #: The one thread that waits does so for fewer active calls than this.
        self._notify_below = 0
        self._waiting: list[_Waiting] = []
        self._numbers = itertools.count()

    # ---- queues ---------------------------------------------------------------------------------

    def start(self, queue: MessageQueue, offset: int, suspects: Suspects = _NONE) -> None:
        """Begin to account for a queue that is read from an offset on."""
        with self._changed:
            self._grant(queue, offset, suspects)

    def start_over(self, queue: MessageQueue, end: int) -> int | None:
        """Forget what is in flight of a queue that has shrunk; return where to read again, None if it has left."""
        with self._changed:
            work = self._queues.get(queue)
            if work is None:
                return None
            offset = min(work.ranges.commit_position, end)
            self._grant(queue, offset)
            return offset

    def drop(self, queues: Iterable[MessageQueue]) -> None:
        """Forget queues that are read no more, with their messages."""
        with self._changed:
            for queue in queues:
                self._queues.pop(queue, None)
                self._blocked.discard(queue)
                self._suspect.discard(queue)

    def leave(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Release queues without an active call; return their commit positions.

        Messages that wait for another try do not keep a queue: its next owner gets them.
        """
        with self._changed:
            gone: dict[MessageQueue, int] = {}
            for queue in queues:
                work = self._queues.get(queue)
                if work is not None and not work.active:
                    gone[queue] = work.ranges.commit_position
                    del self._queues[queue]
                    self._blocked.discard(queue)
                    self._suspect.discard(queue)
            return gone

    def blocked(self) -> frozenset[MessageQueue]:
        """Return the queues of which nothing is to be taken now; to be asked before each look for messages."""
        with self._changed:
            self._seen = self._latest
            return frozenset(self._blocked)

    def suspects(self, *, near_only: bool) -> dict[MessageQueue, Suspects]:
        """Return the queues with suspects; if so wanted, only those with suspects that are to be delivered alone."""
        if not self._suspect:
            return {}
        with self._changed:
            for queue in [*self._suspect]:
                work = self._queues[queue]
                if work.ranges.commit_position >= (work.suspects.near if near_only else work.suspects.end):
                    self._suspect.discard(queue)
            return {queue: self._queues[queue].suspects for queue in self._suspect}

    def offsets(self, positions: Callable[[], Mapping[MessageQueue, int]]) -> dict[MessageQueue, int]:
        """Return the commit positions of all queues; only by the thread that takes messages."""
        with self._changed:
            before = dict(self._queues)
        read = positions()  # after the look at the queues: one that begins anew meanwhile begins behind no message
        with self._changed:
            for queue, position in read.items():
                work = self._queues.get(queue)
                if work is not None and work is before.get(queue):
                    work.ranges.pass_over(position)
                    self._update(queue, work)
            return {queue: work.ranges.commit_position for queue, work in self._queues.items()}

    def of_queue(self, queue: MessageQueue) -> tuple[int, int]:
        """Return how many messages of a queue are in flight, and the bytes of their bodies."""
        with self._changed:
            work = self._queues.get(queue)
            return (work.ranges.messages, work.ranges.size) if work else (0, 0)

    def _grant(self, queue: MessageQueue, offset: int, suspects: Suspects = _NONE) -> None:
        self._latest += 1
        self._queues[queue] = _QueueWork(offset, self._latest, suspects)
        self._blocked.discard(queue)
        if suspects.tries:
            self._suspect.add(queue)
        else:
            self._suspect.discard(queue)

    def _update(self, queue: MessageQueue, work: _QueueWork) -> None:
        if self._queues.get(queue) is not work:
            return
        if not work.ranges.idle if self._one_at_a_time else work.ranges.is_full(self._limits):
            self._blocked.add(queue)
        else:
            self._blocked.discard(queue)

    # ---- calls ----------------------------------------------------------------------------------

    def take(
        self,
        taken: Sequence[ReceivedMessage],
        parts: Sequence[list[ReceivedMessage]],
        read_again: Callable[[int], None],
    ) -> list[Delivery]:
        """Account for messages that were taken from a queue; return the calls to be made."""
        queue = taken[0].queue
        with self._changed:
            work = self._queues.get(queue)
        if work is None:
            return []  # taken away meanwhile
        if work.number > self._seen:  # it has begun anew since the look
            read_again(work.ranges.commit_position)
            return []
        with self._changed:
            deliveries = []
            end = taken[-1].queue_offset + 1
            for part in parts:
                first = part[0].queue_offset
                work.ranges.begin(first, part[-1].queue_offset + 1, len(part), _size(part))
                delivery = Delivery(queue, first, part, work)
                self._activate(delivery)
                deliveries.append(delivery)
            work.ranges.pass_over(end)
            self._update(queue, work)
            return deliveries

    def due(self, now: float) -> list[Delivery]:
        """Return the calls whose wait is over."""
        with self._changed:
            found = []
            while self._waiting and self._waiting[0].due <= now:
                delivery = heapq.heappop(self._waiting).delivery
                if self._is_current(delivery):
                    self._activate(delivery)
                    found.append(delivery)
            return found

    def next_due(self) -> float:
        """Return when the next wait is over."""
        with self._changed:
            return self._waiting[0].due if self._waiting else math.inf

    def is_current(self, delivery: Delivery) -> bool:
        """Tell whether the queue of a call is still this consumer's, as it was when the call was made."""
        with self._changed:
            return self._is_current(delivery)

    def finish(self, delivery: Delivery) -> Delivery | None:
        """Finish all messages of a call; return the call that has waited for that, which is to be made now."""
        with self._changed:
            delivery.work.ranges.finish(delivery.first)
            self._update(delivery.queue, delivery.work)
            following = delivery.following if self._is_current(delivery) else None
            if following is not None:
                self._activate(following)
            self._deactivate(delivery)
        self._notify_changed()
        return following

    def narrow(self, delivery: Delivery, messages: Sequence[ReceivedMessage]) -> None:
        """Keep only these messages of a call in flight."""
        with self._changed:
            delivery.messages = messages
            delivery.work.ranges.narrow(delivery.first, messages[0].queue_offset, len(messages), _size(messages))
            self._update(delivery.queue, delivery.work)

    def put_aside(self, delivery: Delivery, messages: Sequence[ReceivedMessage], until: float) -> None:
        """Give each of these messages of a call a call of its own at that time: it must not suffer for others.

        Where a queue has one call at a time, each waits for the one before it.
        """
        with self._changed:
            delivery.work.ranges.split(
                delivery.first, [(message.queue_offset, len(message.body)) for message in messages]
            )
            self._update(delivery.queue, delivery.work)
            # Others: a thread that hangs may still have this one.
            again = [Delivery(delivery.queue, message.queue_offset, [message], delivery.work) for message in messages]
            for one in again:
                one.gives_up = delivery.gives_up
            if self._one_at_a_time:
                for one, following in itertools.pairwise(again):
                    one.following = following
                again[-1].following = delivery.following
                del again[1:]
            for one in again:
                heapq.heappush(self._waiting, _Waiting(until, next(self._numbers), one))
            self._deactivate(delivery)
        self._notify_changed()

    def begin(self, delivery: Delivery, now: float) -> bool:
        """Note that the listener is about to be called; return whether it is to be, and the queue is not lost."""
        with self._changed:
            if is_current := self._is_current(delivery):
                delivery.began_at = now
            else:
                self._deactivate(delivery)
        if not is_current:
            self._notify_changed()
        return is_current

    def postpone(self, delivery: Delivery, until: float) -> None:
        """Make a call that has not begun at that time, if the queue is not lost by then."""
        with self._changed:
            heapq.heappush(self._waiting, _Waiting(until, next(self._numbers), delivery))
            self._deactivate(delivery)
        self._notify_changed()

    def answered(self, delivery: Delivery) -> bool:
        """Note that the listener has answered; return whether its answer still matters."""
        with self._changed:
            delivery.began_at = None
            return not delivery.given_up

    def hanging(self, now: float, timeout_s: float, *, give_up: bool) -> list[Delivery]:
        """Return the calls that have lasted too long by now, each once."""
        with self._changed:
            late = [
                delivery
                for delivery in self._active
                if not delivery.hangs and delivery.began_at is not None and now >= delivery.began_at + timeout_s
            ]
            for delivery in late:
                delivery.hangs = True
                delivery.given_up = give_up
            return late

    def wait(self, timeout_s: float) -> None:
        """Wait until a call was put aside or is over."""
        with self._changed:
            self._notify_below = len(self._active) + 1
            self._changed.wait(timeout_s)

    def wait_until_below(self, most: int, timeout_s: float) -> bool:
        """Wait until threads or tasks are busy with fewer calls than so many. Returns whether that came in time."""
        with self._changed:
            self._notify_below = most  # a waiter that each call wakes takes more time than the calls
            return self._changed.wait_for(lambda: len(self._active) < most, timeout_s)

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until all calls are over but those that hang. Returns whether that came in time."""
        with self._changed:
            self._notify_below = 1 + sum(delivery.hangs for delivery in self._active)
            return self._changed.wait_for(lambda: all(delivery.hangs for delivery in self._active), timeout_s)

    @property
    def active(self) -> int:
        """Number of deliveries that a thread has or will have."""
        return len(self._active)

    @property
    def running(self) -> int:
        """Number of calls that have begun and not ended."""
        with self._changed:
            return sum(delivery.began_at is not None for delivery in self._active)

    def _is_current(self, delivery: Delivery) -> bool:
        return self._queues.get(delivery.queue) is delivery.work

    def _activate(self, delivery: Delivery) -> None:
        self._active[delivery] = None
        delivery.work.active += 1

    def _deactivate(self, delivery: Delivery) -> None:
        if delivery in self._active:
            del self._active[delivery]
            delivery.work.active -= 1
            if len(self._active) < self._notify_below:
                self._changed.notify_all()


def _size(messages: Sequence[ReceivedMessage]) -> int:
    return sum(len(message.body) for message in messages)
