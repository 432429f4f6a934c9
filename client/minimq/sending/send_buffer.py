"""The bounded buffer between the threads that send and the event loop."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from minimq.connection.fork_guard import check_may_wait
from minimq.sending.pending_batch import BatchNumber, BufferShare, PendingBatch, PendingMessage
from minimq_common.errors import BufferFull, Closed, DeadlineExceeded

_CLOSED = "the producer is closed"


class SendBuffer:
    """All state that sending threads share with the event loop: reserved bytes, batch numbers, the queue. Thread-safe.

    Messages and bytes count from their reservation until their outcome; each `wait` begins a new epoch. Code that holds
    the lock calls no function and creates no object that the garbage collector tracks. So no Ctrl-C or finalizer can
    run while the lock is held: finalizers may send, too.
    """

    def __init__(
        self, limit_bytes: int, *, block_when_full: bool, check_may_wait: Callable[[], None] = check_may_wait
    ) -> None:
        self._check_may_wait = check_may_wait
        self._limit_bytes = limit_bytes
        self._block_when_full = block_when_full
        self._lock = threading.RLock()  # protects everything below
        self._closed = False
        self._is_over = False
        self._epoch = 0
        #: Numbers of messages without an outcome, by epoch.
        self._counts: defaultdict[int, int] = defaultdict(int)
        self.bytes = 0
        self._next_sequence = 0
        #: Closed sequence numbers, whose batches will not be sent again: all below `_settled`, and those in the set.
        self._settled = 0
        self._closed_numbers: set[int] = set()
        #: Items that the event loop has not taken yet.
        self.handed: deque[PendingMessage | PendingBatch] = deque()
        #: Called once when room is freed or the buffer is closed; they wake threads and event loops.
        self._calls: deque[Callable[[], object]] = deque()

    @property
    def messages(self) -> int:
        """Number of messages without an outcome."""
        return sum(self._counts.copy().values())

    # ---- handing over ---------------------------------------------------------------------------

    def try_add(self, item: PendingMessage) -> bool:
        """Reserve room and queue a message for the loop; False if there is no room. Raises `Closed`."""
        size, handed, one = item.memory, self.handed, (item,)
        with self._lock:
            if self._closed:
                raise Closed(_CLOSED)
            if self.bytes and self.bytes + size > self._limit_bytes:
                return False
            item.epoch = self._epoch
            self._counts[self._epoch] += 1
            self.bytes += size
            handed += one  # not `append`: no calls under the lock
            return True

    def hand_over(self, batch: PendingBatch) -> None:
        """Queue a batch for the loop. It has its room and its number already."""
        handed, one = self.handed, (batch,)
        with self._lock:
            if self._is_over:
                raise Closed("the producer was closed before the message was acknowledged")
            batch.is_handed_over = True
            handed += one

    def end(self) -> None:
        """Reject everything from now on: the loop takes no more items. Idempotent."""
        with self._lock:
            self._is_over = True
        self.close()

    # ---- numbers --------------------------------------------------------------------------------

    def number(self, batch: PendingBatch) -> None:
        with self._lock:
            sequence = self._next_sequence
            self._next_sequence = sequence + 1
            batch.sequence = sequence
            settled = self._settled
        batch.number = BatchNumber(sequence, sequence - settled)

    def finish(self, batch: PendingBatch) -> None:
        """Free the bytes and the number of a batch that will not be sent again. On the loop only. Idempotent.

        Its messages count until `release`.
        """
        share = batch.share
        with self._lock:
            self.bytes -= share.size
            share.size = 0
        if batch.sequence < self._settled:  # already closed, or never numbered
            return
        self._closed_numbers.add(batch.sequence)
        while self._settled in self._closed_numbers:
            self._closed_numbers.remove(self._settled)
            self._settled += 1

    # ---- room -----------------------------------------------------------------------------------

    def reserve(self, share: BufferShare, count: int, size: int) -> None:
        """Add `size` bytes for `count` messages to a share. If the buffer is full, see `wait_for_room`."""
        if not self.try_reserve(share, count, size):
            self.wait_for_room(partial(self.try_reserve, share, count, size))

    def try_reserve(self, share: BufferShare, count: int, size: int) -> bool:
        """Like `reserve`, but return False if the buffer is full. Raises `Closed`."""
        with self._lock:
            if self._closed:
                raise Closed(_CLOSED)
            if self.bytes and self.bytes + size > self._limit_bytes:
                return False
            self._counts[self._epoch] += count
            self.bytes += size
            share.counts[self._epoch] += count
            share.size += size
            return True

    def grow(self, share: BufferShare, size: int) -> None:
        """Correct the size of a share by `size` bytes, which may be negative."""
        with self._lock:
            self.bytes += size
            share.size += size

    def release(self, share: BufferShare) -> None:
        """Free the room of a share. Idempotent."""
        counts, nothing = share.counts, BufferShare().counts
        with self._lock:
            share.counts = nothing
            self.bytes -= share.size
            share.size = 0
            for epoch in counts:
                self._counts[epoch] -= counts[epoch]
                if not self._counts[epoch]:
                    del self._counts[epoch]
        if self._calls:
            self._wake()

    def call_when_room(self, size: int, call: Callable[[], object]) -> None:
        """Call a function once, when `size` bytes may fit: on any thread, perhaps before this returns.

        `call` must be quick and must not raise.
        """
        self._calls.append(call)
        if not self.bytes or self.bytes + size <= self._limit_bytes or self._closed:
            self._wake()

    def close(self) -> None:
        """Reject new messages. Idempotent."""
        with self._lock:
            self._closed = True
        self._wake()

    # ---- waiting --------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None) -> int:
        """Wait for the outcomes of all messages that are buffered now; return how many have none after the timeout."""
        self._check_may_wait()
        with self._lock:
            end = self._epoch = self._epoch + 1

        def left() -> int:
            return sum(count for epoch, count in self._counts.copy().items() if epoch < end)

        self._wait_until(lambda: not left(), None if timeout_s is None else time.monotonic() + timeout_s)
        return left()

    def wait_for_room(self, take: Callable[[], bool], deadline: float | None = None) -> None:
        """Block until `take` returns True; it reserves the room. Raises `BufferFull` unless `block_when_full`.

        Raises `DeadlineExceeded` at the deadline, on the monotonic clock.
        """
        full = f"{self.bytes} bytes wait to be sent, the limit is {self._limit_bytes}"
        if not self._block_when_full:
            raise BufferFull(f"{full}: send more slowly, raise buffer_bytes, or set block_when_full")
        self._check_may_wait()
        if not self._wait_until(take, deadline):
            raise DeadlineExceeded(f"{full}, and the buffer stayed full: the message was not sent; send more slowly")

    def _wait_until(self, is_over: Callable[[], bool], deadline: float | None) -> bool:
        woken: SimpleQueue[None] = SimpleQueue()
        wake = partial(woken.put, None)
        try:
            while True:
                self._calls.append(wake)  # before the check, so that no wake-up is lost
                if is_over():
                    return True
                woken.get(timeout=None if deadline is None else max(deadline - time.monotonic(), 0.0))
        except Empty:
            return False
        finally:
            with suppress(ValueError):  # `_wake` has removed it
                self._calls.remove(wake)

    def _wake(self) -> None:
        for _ in range(len(self._calls)):
            with suppress(IndexError):  # another thread took it
                self._calls.popleft()()
