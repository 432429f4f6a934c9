"""The answer to a request for which one thread waits at once."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from minimq_common.errors import DeadlineExceeded, MiniMQError

T = TypeVar("T")


class AwaitedAnswer(Generic[T]):
    """One answer; set by any thread, awaited by one."""

    __slots__ = ("_answer", "_arrived", "_error")

    def __init__(self) -> None:
        self._arrived = threading.Lock()
        self._arrived.acquire()
        self._answer: T | None = None
        self._error: MiniMQError | None = None

    def complete(self, answer: T | None, error: MiniMQError | None, /) -> None:
        """Process the answer, or the error."""
        self._answer, self._error = answer, error
        self._arrived.release()

    def result(self, timeout_s: float = -1, peer: str = "the server") -> T:
        """Wait, by default without a limit; return the answer, or raise the error."""
        if not self._arrived.acquire(timeout=timeout_s):
            raise DeadlineExceeded(f"{peer} gave no answer for {timeout_s:g} s")
        if self._answer is not None:
            return self._answer
        assert self._error is not None
        try:
            raise self._error
        finally:
            del self._error, self  # whose traceback holds this frame
