"""The bounded buffer of a producer: how much was handed in and is neither acknowledged nor failed."""

from __future__ import annotations

import threading

from minimq_common.errors import BufferFull, Closed


class SendBuffer:
    """Counts messages and bytes on their way. Thread-safe.

    Args:
        limit_bytes: what may be on its way; a single message larger than that still goes when the buffer is empty.
        block_when_full: let `reserve` wait for room, or raise.
    """

    def __init__(self, limit_bytes: int, *, block_when_full: bool) -> None:
        self._limit_bytes = limit_bytes
        self._block_when_full = block_when_full
        #: Protects everything below.
        self._changed = threading.Condition()
        self._waiting = 0
        self._closed = False
        self.bytes = 0
        self.messages = 0

    def reserve(self, count: int, size: int) -> None:
        """Take room for `count` messages of together `size` bytes.

        Raises:
            BufferFull: there is none, and the buffer does not block.
            Closed: the buffer was closed, before the call or while it waited.
        """
        with self._changed:
            self._waiting += 1
            try:
                while not self._has_room(size) and not self._closed:
                    if not self._block_when_full:
                        raise BufferFull(
                            f"{self.bytes} bytes wait to be sent, the limit is {self._limit_bytes}: "
                            "send more slowly, raise buffer_bytes, or set block_when_full"
                        )
                    self._changed.wait()
            finally:
                self._waiting -= 1
            self._take(count, size)

    def try_reserve(self, count: int, size: int) -> bool:
        """Take room if there is room at once. Returns whether there was. Raises `Closed`."""
        with self._changed:
            if not self._has_room(size) and not self._closed:
                return False
            self._take(count, size)
            return True

    def release(self, count: int, size: int) -> None:
        """Give room back."""
        with self._changed:
            self.bytes -= size
            self.messages -= count
            if self._waiting:
                self._changed.notify_all()

    def wait_until_empty(self, timeout_s: float | None) -> int:
        """Wait until nothing is on its way, at most so long; return how many messages still are."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self.messages == 0, timeout_s)
            finally:
                self._waiting -= 1
            return self.messages

    def close(self) -> None:
        """Let nothing in any more. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return not self.bytes or self.bytes + size <= self._limit_bytes

    def _take(self, count: int, size: int) -> None:
        if self._closed:
            raise Closed("the producer is closed")
        self.bytes += size
        self.messages += count
