"""The bounded buffer of a producer, by which callers hand over to the event loop."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence

from minimq.sending.pending_batch import BatchNumber, PendingBatch, PendingMessage
from minimq.transport.home_process import check_no_signal
from minimq_common.errors import BufferFull, Closed

_CLOSED = "the producer is closed"


class SendBuffer:
    """What callers share with the loop: room, the numbers of batches, and what was handed over. Thread-safe.

    Messages and bytes count from their reservation to their outcome. Each reservation has a ticket, one more than that
    of the one before. Where an item is handed over, nothing else is called while the lock is held: Ctrl-C comes before
    that, or behind it, and a signal handler that sends finds everything in order.
    """

    def __init__(self, limit_bytes: int, *, block_when_full: bool) -> None:
        self._limit_bytes = limit_bytes
        self._block_when_full = block_when_full
        #: Protects everything below. A signal handler may take it once more.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        #: Called once when there is more room, or the buffer was closed.
        self._calls: list[Callable[[], object]] = []
        self._closed = False
        self._is_over = False
        self._next = 0
        #: Topic and number of messages by ticket, the oldest first.
        self._alive: dict[int, tuple[str, int]] = {}
        self.bytes = 0
        self.messages = 0
        self._next_sequence = 0
        #: Numbers that may still be sent again: a set that keeps its order, so that the first is the oldest.
        self._open_numbers: dict[int, None] = {}
        #: What the loop has not taken yet.
        self.handed: deque[PendingMessage | PendingBatch] = deque()

    # ---- handing over ---------------------------------------------------------------------------

    def add(self, item: PendingMessage, *, wait: bool) -> bool:
        """Hand over a message for which there is room, perhaps after waiting; return False if there is none."""
        topic, size, handed = item.message.topic, item.memory, self.handed
        while True:
            with self._lock:
                if self.bytes + size <= self._limit_bytes or not self.bytes or self._closed:
                    if self._closed:
                        raise Closed(_CLOSED)
                    ticket = item.ticket = self._next
                    self._next = ticket + 1
                    self._alive[ticket] = topic, 1
                    self.bytes += size
                    self.messages += 1
                    handed.append(item)
                    return True
                if not wait:
                    return False
                self._wait_for_room(size)

    def hand_over(self, batch: PendingBatch) -> None:
        """Hand over a batch that has its room and its number."""
        with self._lock:
            if self._is_over:
                raise Closed("the producer was closed before the message was acknowledged")
            batch.is_handed_over = True
            self.handed.append(batch)

    def end(self) -> None:
        """Let nobody hand over any more: nobody would take it. Idempotent."""
        self.close()
        with self._lock:
            self._is_over = True

    def number(self, batch: PendingBatch) -> None:
        """Give a batch the next number."""
        with self._lock:
            sequence = self._next_sequence
            number = BatchNumber(sequence, sequence - next(iter(self._open_numbers), sequence))
            # After the last call: Ctrl-C comes before the number is open, or once the batch has it.
            self._next_sequence = sequence + 1
            self._open_numbers[sequence] = None
            batch.number = number

    def close_number(self, batch: PendingBatch) -> None:
        """Note that a batch will not be sent again: it is stored, or was given up. Idempotent."""
        if batch.number is not None:
            with self._lock:
                self._open_numbers.pop(batch.number.sequence, None)

    # ---- room -----------------------------------------------------------------------------------

    def reserve(self, topic: str, count: int, size: int) -> int:
        """Take room for `count` messages of together `size` bytes; return the ticket."""
        ticket = self._reserve(topic, count, size, wait=True)
        assert ticket is not None  # it has waited
        return ticket

    def try_reserve(self, topic: str, count: int, size: int) -> int | None:
        """Take room if there is room at once; return the ticket, or None. Raises `Closed`."""
        return self._reserve(topic, count, size, wait=False)

    def _reserve(self, topic: str, count: int, size: int, *, wait: bool) -> int | None:
        with self._lock:
            if self.bytes and self.bytes + size > self._limit_bytes and not self._closed:
                if not wait:
                    return None
                self._wait_for_room(size)
            if self._closed:
                raise Closed(_CLOSED)
            ticket = self._next
            self._next = ticket + 1
            self._alive[ticket] = topic, count
            self.bytes += size
            self.messages += count
            return ticket

    def _wait_for_room(self, size: int) -> None:
        check_no_signal()  # what it has interrupted may hold the room
        self._waiting += 1
        try:
            while self.bytes and self.bytes + size > self._limit_bytes and not self._closed:
                if not self._block_when_full:
                    raise BufferFull(
                        f"{self.bytes} bytes wait to be sent, the limit is {self._limit_bytes}: "
                        "send more slowly, raise buffer_bytes, or set block_when_full"
                    )
                self._changed.wait()
        finally:
            self._waiting -= 1

    def call_at_room(self, size: int, call: Callable[[], object]) -> None:
        """Have a function called once, when `size` bytes may have room: by any thread, perhaps at once.

        It is called with the lock held: it must be quick, and must not raise.
        """
        with self._lock:
            if self.bytes and self.bytes + size > self._limit_bytes and not self._closed:
                self._calls.append(call)
                return
        call()

    def grow(self, size: int) -> None:
        """Note that what has a ticket takes more room than was thought; it is given back with the rest."""
        with self._lock:
            self.bytes += size

    def release(self, tickets: Sequence[int], size: int, counts: Sequence[int] | None = None) -> None:
        """Give back the room of these tickets, `size` bytes together; of so many messages of each if counts are given.

        A ticket counts as alive until all its messages have been given back.
        """
        with self._lock:
            self.bytes -= size
            alive = self._alive
            if counts is None:
                for ticket in tickets:
                    self.messages -= alive.pop(ticket)[1]
            else:
                for ticket, count in zip(tickets, counts, strict=True):
                    topic, left = alive[ticket]
                    if count == left:
                        del alive[ticket]
                    else:
                        alive[ticket] = topic, left - count
                    self.messages -= count
            if self._waiting:
                self._changed.notify_all()
            if self._calls:
                self._call_all()

    def _call_all(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            call()

    def wait(self, timeout_s: float | None) -> int:
        """Wait for the outcomes of all that is in the buffer now, at most so long; return how many messages lack it."""
        with self._lock:
            end = self._next
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: next(iter(self._alive), end) >= end, timeout_s)
            finally:
                self._waiting -= 1
            return sum(count for ticket, (_, count) in self._alive.items() if ticket < end)

    def close(self) -> None:
        """Let nothing in any more. Idempotent."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            self._call_all()

    def left(self) -> Counter[str]:
        """Return how many messages have no outcome yet, by topic."""
        with self._lock:
            left: Counter[str] = Counter()
            for topic, count in self._alive.values():
                left[topic] += count
            return left
