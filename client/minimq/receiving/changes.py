"""The lock of queue readers, and the wait of one thread or task until something has changed."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Changes:
    """A lock, and one who waits for what others change under it.

    It does what a `threading.Condition` does, but Ctrl-C leaves it whole. A condition is Python code: an exception that
    a handler of signals raises may come when the lock is taken and the `with` block has not begun, and then nobody lets
    go of it. A `with` block of the lock itself has no such gap.

    Attributes:
        lock: may be taken again by the thread that holds it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._listener: Callable[[], None] | None = None

    def notify_next(self, listener: Callable[[], None]) -> None:
        """Call back once, when something changes; in place of whoever waited before. The caller holds the lock."""
        self._listener = listener

    def notify(self) -> None:
        """Say that something has changed. The caller holds the lock."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener()
