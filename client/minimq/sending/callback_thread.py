"""The thread on which a producer runs user callbacks, which may block."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from minimq_common.retry_log import RetryLog

log = logging.getLogger(__name__)


class CallbackThread:
    """Runs calls one after the other. Thread-safe; the thread starts with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()  # protects the next two
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        #: The thread that runs the calls; 0 if there is none.
        self.ident = 0
        self._faults = RetryLog(log)

    def run(self, call: Callable[[], object]) -> None:
        """Schedule a call. After `close`, and if no thread can be started, run it here."""
        with self._lock:
            if self._thread is None and not self._is_closed:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                with suppress(RuntimeError):  # the interpreter shuts down, or has too many threads
                    thread.start()
                    self._thread = thread
            has_thread = self._thread is not None
        if has_thread:
            self._calls.put(call)
        else:
            self._make(call)

    def is_mine(self) -> bool:
        """Return whether the caller is a callback, which cannot wait for its own end."""
        return threading.get_ident() == self.ident

    def wait(self, timeout_s: float | None) -> None:
        """Wait until the calls that are scheduled now have run, or the timeout."""
        if self._thread is not None:
            ended: queue.SimpleQueue[None] = queue.SimpleQueue()
            self.run(partial(ended.put, None))
            with suppress(queue.Empty):
                ended.get(timeout=timeout_s)

    def close(self, timeout_s: float) -> None:
        """End the thread after its pending calls; wait for that unless this is one of them."""
        with self._lock:
            thread, self._thread, self._is_closed = self._thread, None, True
        if thread is not None:
            self._calls.put(None)
            if thread is not threading.current_thread():
                thread.join(timeout_s)

    def _run(self) -> None:
        self.ident = threading.get_ident()
        while (call := self._calls.get()) is not None:
            self._make(call)
        self.ident = 0  # the system may reuse it for another thread

    def _make(self, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - even SystemExit: other calls wait behind this one
            self._faults.crashed("producer: a callback raised", cause=error)
