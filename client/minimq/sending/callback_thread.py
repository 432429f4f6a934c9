"""The thread on which a producer runs user callbacks, which may block."""

from __future__ import annotations

import _thread
import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from minimq.connection.client_log import client_logger
from minimq_common.retry_log import RetryLog

log = client_logger(__name__)


class CallbackThread:
    """Runs calls one after the other. Thread-safe; the thread starts with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()  # protects everything below
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._closed = False
        #: The thread that runs the calls; 0 if there is none.
        self.ident = 0
        self._faults = RetryLog(log)

    def run(self, call: Callable[[], object]) -> None:
        """Schedule a call. If no thread can be started, run it here."""
        with self._lock:
            if self._thread is None:
                over = threading.Event()
                thread = threading.Thread(target=self._run, args=(self._calls, over), name=self._name, daemon=True)
                with suppress(RuntimeError):  # the interpreter shuts down, or has too many threads
                    _thread.start_new_thread(thread.start, ())  # `start` blocks, which an event loop must not
                    self._thread, self._over = thread, over
            has_thread = self._thread is not None
            if has_thread:
                self._calls.put(call)
                if self._closed:
                    self._end()
        if not has_thread:
            self._make(call)

    def is_mine(self) -> bool:
        """Return whether the caller is a callback, which cannot wait for its own end."""
        return threading.get_ident() == self.ident

    def close(self, timeout_s: float) -> None:
        """End the thread after its pending calls; wait for that unless this is one of them."""
        with self._lock:
            self._closed = True
            thread, over = self._thread, self._over
            self._end()
        if thread is not None and thread is not threading.current_thread() and over.wait(timeout_s):
            thread.join()

    def _end(self) -> None:
        self._calls.put(None)
        self._thread, self._calls = None, queue.SimpleQueue()

    def _run(self, calls: queue.SimpleQueue[Callable[[], object] | None], over: threading.Event) -> None:
        self.ident = threading.get_ident()
        while (call := calls.get()) is not None:
            self._make(call)
        self.ident = 0  # the system may reuse it for another thread
        over.set()

    def _make(self, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - even SystemExit: other calls wait behind this one
            self._faults.crashed("producer: a callback raised", cause=error)
