"""The threads that call a listener."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class ListenerThreads:
    """A few threads that do what they are given, in its order. Thread-safe.

    They are daemons: a listener that never returns does not keep the process alive.

    Args:
        count: of threads.
        name: what their names begin with.
    """

    def __init__(self, count: int, name: str) -> None:
        self._to_do: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(count)
        ]
        self._started = False

    def submit(self, task: Callable[[], None]) -> None:
        """Have something done that never raises."""
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()
        self._to_do.put(task)

    def close(self) -> None:
        """Let each thread end when it has done what it is at. What was not begun is not done."""
        while True:
            try:
                self._to_do.get_nowait()
            except queue.Empty:
                break
        for _ in self._threads:
            self._to_do.put(None)

    def is_mine(self) -> bool:
        """Tell whether the caller is one of these threads."""
        return threading.current_thread() in self._threads

    def _run(self) -> None:
        while (task := self._to_do.get()) is not None:
            try:
                task()
            except Exception:
                log.exception("consumer: a call of the listener was not taken in")
