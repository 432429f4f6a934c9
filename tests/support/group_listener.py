"""A record of the calls of callbacks about queues."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from minimq import MessageQueue


class QueueLog:
    """Notes each call of `on_assigned`, `on_revoked` and `on_lost`, in order. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.calls: list[tuple[str, MessageQueue, str]] = []
        #: Called with the kind and the queues before the call is noted; its result is returned to the consumer.
        self.then: Callable[[str, Sequence[MessageQueue]], object] = lambda *_: None

    @property
    def options(self) -> dict[str, Any]:
        """The options that a consumer needs for it."""
        return {f"on_{kind}": self._noting(kind) for kind in ("assigned", "revoked", "lost")}

    def queues(self, kind: str) -> list[MessageQueue]:
        """Return the queues that a kind of callback was called with."""
        with self._lock:
            return [queue for called, queue, _ in self.calls if called == kind]

    def kinds(self, queue: MessageQueue) -> list[str]:
        """Return the calls about a queue, in order."""
        with self._lock:
            return [kind for kind, called, _ in self.calls if called == queue]

    def threads(self) -> set[str]:
        """Return the names of the threads that called."""
        with self._lock:
            return {thread for _, _, thread in self.calls}

    def _noting(self, kind: str) -> Callable[[Sequence[MessageQueue]], object]:
        def note(queues: Sequence[MessageQueue]) -> object:
            result = self.then(kind, queues)
            with self._lock:
                self.calls += [(kind, queue, threading.current_thread().name) for queue in queues]
            return result

        return note
