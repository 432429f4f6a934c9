"""The bounded buffer of a producer, by which callers hand over to the event loop."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import repeat
from queue import Empty, SimpleQueue

from minimq.sending.pending_batch import BatchNumber, BufferShare, PendingBatch, PendingMessage
from minimq.transport.home_process import check_may_wait
from minimq_common.errors import BufferFull, Closed

_CLOSED = "the producer is closed"


class SendBuffer:
    """The room, the numbers of batches, and what was handed over: all that callers share with the loop. Thread-safe.

    Messages and bytes count from their reservation to their outcome. Each reservation has a ticket, one more than that
    of the one before. A caller that has the lock calls nothing, and makes nothing that the garbage collector counts: so
    neither Ctrl-C nor a signal handler or finalizer, which may send and wait for the loop, comes in between.
    """

    def __init__(self, limit_bytes: int, *, block_when_full: bool) -> None:
        self._limit_bytes = limit_bytes
        self._block_when_full = block_when_full
        self._lock = threading.RLock()  # protects everything below
        self._closed = False
        self._is_over = False
        self._next = 0
        #: Topic and number of messages by ticket, the oldest first.
        self._alive: dict[int, tuple[str, int]] = {}
        self.bytes = 0
        self.messages = 0
        self._next_sequence = 0
        #: All numbers below are closed, and those in the set.
        self._settled = 0
        self._closed_numbers: set[int] = set()
        #: What the loop has not taken yet.
        self.handed: deque[PendingMessage | PendingBatch] = deque()
        #: Made once there is more room, or the buffer is closed: they wake threads and event loops.
        self._calls: deque[Callable[[], object]] = deque()

    # ---- handing over ---------------------------------------------------------------------------

    def try_add(self, item: PendingMessage) -> bool:
        """Hand over a message if there is room; return whether there was."""
        size, handed, one, entry = item.memory, self.handed, (item,), (item.message.topic, 1)
        with self._lock:
            if self._closed:
                raise Closed(_CLOSED)
            if self.bytes and self.bytes + size > self._limit_bytes:
                return False
            ticket = item.ticket = self._next
            self._next = ticket + 1
            self._alive[ticket] = entry
            self.bytes += size
            self.messages += 1
            handed += one  # `append` would be a call
            return True

    def hand_over(self, batch: PendingBatch) -> None:
        """Hand over a batch that has its room and its number."""
        handed, one = self.handed, (batch,)
        with self._lock:
            if self._is_over:
                raise Closed("the producer was closed before the message was acknowledged")
            batch.is_handed_over = True
            handed += one

    def end(self) -> None:
        """Let nobody hand over any more: nobody would take it. Idempotent."""
        with self._lock:
            self._is_over = True
        self.close()

    # ---- numbers --------------------------------------------------------------------------------

    def number(self, batch: PendingBatch) -> None:
        """Give a batch the next number."""
        with self._lock:
            sequence = self._next_sequence
            self._next_sequence = sequence + 1
            batch.sequence = sequence
            settled = self._settled
        batch.number = BatchNumber(sequence, sequence - settled)

    def close_number(self, batch: PendingBatch) -> None:
        """Note, on the loop, that a batch will not be sent again: it is stored, or was given up. Idempotent."""
        if batch.sequence < self._settled:  # that was done, or it has none
            return
        self._closed_numbers.add(batch.sequence)
        while self._settled in self._closed_numbers:
            self._closed_numbers.remove(self._settled)
            self._settled += 1

    # ---- room -----------------------------------------------------------------------------------

    def reserve(self, share: BufferShare, topic: str, count: int, size: int) -> None:
        """Add room for `count` messages of together `size` bytes to a share, after waiting for it if needed."""
        if not self.try_reserve(share, topic, count, size):
            self.wait_for_room(partial(self.try_reserve, share, topic, count, size))

    def try_reserve(self, share: BufferShare, topic: str, count: int, size: int) -> bool:
        """Add room to a share if there is room at once; return whether there was. Raises `Closed`."""
        entry, tickets = (topic, count), [0]
        with self._lock:
            if self._closed:
                raise Closed(_CLOSED)
            if self.bytes and self.bytes + size > self._limit_bytes:
                return False
            ticket = tickets[0] = self._next
            self._next = ticket + 1
            self._alive[ticket] = entry
            self.bytes += size
            self.messages += count
            share.tickets += tickets
            share.size += size
            return True

    def grow(self, share: BufferShare, size: int) -> None:
        """Note that a share takes more room than was thought, or less."""
        with self._lock:
            self.bytes += size
            share.size += size

    def release(self, share: BufferShare) -> None:
        """Give back a share. Idempotent. A ticket is alive until all its messages have been given back."""
        alive, tickets, nothing = self._alive, share.tickets, BufferShare().tickets
        with self._lock:
            share.tickets = nothing
            self.bytes -= share.size
            share.size = 0
        for ticket, some in zip(tickets, share.counts or repeat(None), strict=False):
            with self._lock:
                topic, left = alive[ticket]
                count = left if some is None else some
                if count == left:
                    del alive[ticket]
                else:
                    alive[ticket] = topic, left - count
                self.messages -= count
        if self._calls:
            self._wake()

    def call_when_room(self, size: int, call: Callable[[], object]) -> None:
        """Have a function called once, when `size` bytes may have room: by any thread, perhaps at once.

        It must be quick, and must not raise.
        """
        self._calls.append(call)
        if not self.bytes or self.bytes + size <= self._limit_bytes or self._closed:
            self._wake()

    def close(self) -> None:
        """Let nothing in any more. Idempotent."""
        with self._lock:
            self._closed = True
        self._wake()

    # ---- waiting --------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None) -> int:
        """Wait for the outcomes of all that is in the buffer now, at most so long; return how many messages lack it."""
        check_may_wait()
        end = self._next
        self._wait_until(lambda: self._oldest() >= end, timeout_s)
        return sum(count for ticket, (_, count) in [*self._alive.items()] if ticket < end)

    def left(self) -> Counter[str]:
        """Return how many messages have no outcome yet, by topic."""
        left: Counter[str] = Counter()
        for topic, count in [*self._alive.values()]:
            left[topic] += count
        return left

    def _oldest(self) -> int:
        while True:
            with suppress(RuntimeError):  # it was changed meanwhile
                return next(iter(self._alive), self._next)

    def wait_for_room(self, take: Callable[[], bool]) -> None:
        """Wait until `take` has got its room."""
        if not self._block_when_full:
            raise BufferFull(
                f"{self.bytes} bytes wait to be sent, the limit is {self._limit_bytes}: "
                "send more slowly, raise buffer_bytes, or set block_when_full"
            )
        check_may_wait()  # what it has interrupted may hold the room
        self._wait_until(take, None)

    def _wait_until(self, is_over: Callable[[], bool], timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        woken: SimpleQueue[None] = SimpleQueue()
        wake = partial(woken.put, None)
        try:
            while True:
                self._calls.append(wake)  # first: what comes from here on is made known
                if is_over():
                    return
                woken.get(timeout=None if deadline is None else max(deadline - time.monotonic(), 0.0))
        except Empty:
            return
        finally:
            with suppress(ValueError):  # it was called
                self._calls.remove(wake)

    def _wake(self) -> None:
        for _ in range(len(self._calls)):
            with suppress(IndexError):  # another thread has called it
                self._calls.popleft()()
