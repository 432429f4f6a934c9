"""The end of a client, of which others wait until it is over."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Closing:
    """Closes a client once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closer: int | None = None
        self._is_over = threading.Event()

    def run(self, close: Callable[[], None]) -> None:
        """Close the client; if another thread does or did that, wait until it is over. Raises what `close` raises."""
        with self._lock:
            is_first = self._closer is None
            if is_first:
                self._closer = threading.get_ident()
        if not is_first:
            if self._closer != threading.get_ident():  # else a signal handler has interrupted it
                self._is_over.wait()
            return
        try:
            close()
        finally:
            self._is_over.set()
