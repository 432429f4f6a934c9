"""Threads that call a listener."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from minimq.transport.client_log import client_logger

log = client_logger(__name__)

Delivery = TypeVar("Delivery")


class ListenerThreads(Generic[Delivery]):
    """A few threads that make deliveries in order. Thread-safe.

    They are daemons: a listener that never returns does not keep the process alive.
    """

    #: They run until they are closed.
    has_ended = False

    def __init__(self, count: int, deliver: Callable[[Delivery], None], name: str) -> None:
        self._deliver = deliver
        self._to_do: queue.SimpleQueue[Delivery | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(count)
        ]
        self._started = False

    def look(self, now: float) -> None:
        """Do nothing: a call ends by itself."""

    def add(self, delivery: Delivery) -> None:
        """Schedule a delivery."""
        self.submit(delivery)

    def flush(self) -> None:
        """Do nothing: each thread finds its work by itself."""

    def submit(self, delivery: Delivery) -> None:
        """Schedule a delivery."""
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()
        self._to_do.put(delivery)

    def close(self) -> None:
        """Let each thread end after its current delivery. Pending deliveries are not made."""
        while True:
            try:
                self._to_do.get_nowait()
            except queue.Empty:
                break
        for _ in self._threads:
            self._to_do.put(None)

    def is_mine(self) -> bool:
        """Return whether the caller is one of these threads."""
        return threading.current_thread() in self._threads

    def _run(self) -> None:
        while (delivery := self._to_do.get()) is not None:
            try:
                self._deliver(delivery)
            except Exception:
                log.exception("consumer: a call of the listener was not taken in")
