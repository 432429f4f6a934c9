"""The bounded buffer of a producer: all that was handed in and has no outcome yet."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from minimq_common.errors import BufferFull, Closed


class SendBuffer:
    """Counts messages and bytes from their reservation to their outcome. Thread-safe.

    Each reservation has a ticket, one more than that of the one before.
    """

    def __init__(self, limit_bytes: int, *, block_when_full: bool, lock: threading.Lock | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._block_when_full = block_when_full
        #: Protects everything below.
        self._lock = lock or threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        #: Called once when there is more room, or the buffer was closed.
        self._calls: list[Callable[[], object]] = []
        self._closed = False
        self._next = 0
        #: Topic and number of messages by ticket, the oldest first.
        self._alive: dict[int, tuple[str, int]] = {}
        self.bytes = 0
        self.messages = 0

    def reserve(self, topic: str, count: int, size: int) -> int:
        """Take room for `count` messages of together `size` bytes; return the ticket."""
        with self._lock:
            ticket = self.reserve_locked(topic, count, size)
        assert ticket is not None  # it has waited
        return ticket

    def try_reserve(self, topic: str, count: int, size: int) -> int | None:
        """Take room if there is room at once; return the ticket, or None. Raises `Closed`."""
        with self._lock:
            return self.reserve_locked(topic, count, size, wait=False)

    def reserve_locked(self, topic: str, count: int, size: int, *, wait: bool = True) -> int | None:
        """Take room as `reserve`, or as `try_reserve` without `wait`; the caller holds the lock."""
        if self.bytes and self.bytes + size > self._limit_bytes and not self._closed:
            if not wait:
                return None
            self._wait_for_room(size)
        if self._closed:
            raise Closed("the producer is closed")
        ticket = self._next
        self._next = ticket + 1
        self._alive[ticket] = topic, count
        self.bytes += size
        self.messages += count
        return ticket

    def _wait_for_room(self, size: int) -> None:
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
            self.release_locked(tickets, size, counts)

    def release_locked(self, tickets: Sequence[int], size: int, counts: Sequence[int] | None = None) -> None:
        """Give back room as `release`; the caller holds the lock."""
        self.bytes -= size
        alive = self._alive
        if counts is None:
            self.messages -= sum([alive.pop(ticket)[1] for ticket in tickets])
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
