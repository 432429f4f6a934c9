"""Hands log records of clients to a thread that no client waits for.

A handler of the program may do anything: hold a lock, block, or send its records with a client. So no handler may run
on an event loop that senders wait for, nor where a lock of a client is held. Loggers of clients therefore hand all of
their records over. Those of asyncio, gRPC and warnings do so on the event loops of clients.
"""

from __future__ import annotations

import _thread
import atexit
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: Loggers of others that are used on the event loops of clients. "grpc" stands for its modules as well.
_OTHER_LOGGERS = ("asyncio", "concurrent.futures", "grpc", "minimq_common", "py.warnings")
#: More records do not wait: those that come then are counted.
_MOST_WAITING = 1_000
#: The end of the process waits for handlers so long, in seconds.
_FLUSH_S = 2.0


def client_logger(name: str) -> logging.Logger:
    """Return the logger of a module whose handlers run on the log thread."""
    logger = logging.getLogger(name)
    logger.addFilter(_handover)
    return logger


@contextmanager
def handed_over() -> Iterator[None]:
    """Hand over what loggers of others log on this thread, too."""
    for name in (*_OTHER_LOGGERS, *logging.Logger.manager.loggerDict):
        if name in _OTHER_LOGGERS or name.startswith(("grpc.", "minimq_common.")):
            logging.getLogger(name).addFilter(_handover_of_others)
    thread = threading.get_ident()
    _threads.add(thread)
    try:
        yield
    finally:
        _threads.discard(thread)


def flush(timeout_s: float = _FLUSH_S) -> None:
    """Wait until handlers have processed what was logged, for so many seconds at most."""
    _handover.flush(timeout_s)


class _Handover(logging.Filter):
    """Lets a record pass on the log thread only, which runs while there are records. Thread-safe, and never blocks.

    What a handler makes a client log there would call that handler again: such records are dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self._has_ended = False
        self.reset()

    def reset(self) -> None:
        """Forget everything: in a fork there is no log thread."""
        _threads.clear()
        self._records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        self._runs = threading.Lock()  # held by the log thread, never waited for by those who log
        self._thread = 0
        self._current: logging.LogRecord | None = None
        self._dropped = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether this is the log thread; hand the record over if not."""
        if threading.get_ident() == self._thread:
            if record is not self._current:
                self._dropped += 1
            return record is self._current
        if self._has_ended:
            return True
        if self._records.qsize() < _MOST_WAITING:
            self._records.put(record)
        else:
            self._dropped += 1
        self._start()
        return False

    def _start(self) -> None:
        if self._runs.acquire(blocking=False):
            try:
                _thread.start_new_thread(self._run, ())  # which takes no lock of `threading`
            except RuntimeError:  # the interpreter ends, or has too many threads
                self._run()

    def flush(self, timeout_s: float) -> None:
        """See the function."""
        if threading.get_ident() == self._thread:
            return
        until = time.monotonic() + timeout_s
        while self._runs.acquire(timeout=max(until - time.monotonic(), 0.0)):
            self._runs.release()
            if self._records.empty():
                return
            self._start()  # a record that came while the lock was held here

    def end(self) -> None:
        """Flush as the process ends; what is logged later is handled where it is logged."""
        self.flush(_FLUSH_S)
        self._has_ended = True

    def before_fork(self) -> None:
        """Have children of multiprocessing flush: they end without the hooks of `atexit`."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.register_after_fork(self, lambda own: util.Finalize(None, own.flush, (_FLUSH_S,), exitpriority=0))

    def _run(self) -> None:
        while True:
            self._thread = threading.get_ident()
            try:
                self._deliver()
            finally:
                self._thread = 0
                self._runs.release()
            if self._records.empty() or not self._runs.acquire(blocking=False):
                return

    def _deliver(self) -> None:
        while True:
            try:
                self._current = record = self._records.get_nowait()
            except queue.Empty:
                break
            try:
                logging.getLogger(record.name).handle(record)
            except Exception:  # noqa: BLE001 - of a filter; `logging` reports those of handlers by itself
                self._dropped += 1
        self._current = None
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._current = log.makeRecord(
                log.name, logging.WARNING, __file__, 0, "client: log records were dropped number=%d", (dropped,), None
            )
            log.handle(self._current)
            self._current = None


class _HandoverOfOthers(logging.Filter):
    """Hands over what is logged on the event loop of a client, or by a handler on the log thread."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is to be handled here."""
        thread = threading.get_ident()
        return (thread not in _threads and thread != _handover._thread) or _handover.filter(record)


_threads: set[int] = set()
_handover, _handover_of_others = _Handover(), _HandoverOfOthers()
log = client_logger(__name__)
atexit.register(_handover.end)
os.register_at_fork(before=_handover.before_fork, after_in_child=_handover.reset)
