"""Passes the log records of clients to a log thread, for which no client waits.

A log handler of the program may do anything: take a lock, block, or send its records with a client. It must not run on
an event loop that senders wait for, nor while a client holds a lock. So all records of client loggers go to the log
thread, and those of asyncio, gRPC and warnings if they are logged on the event loop of a client.
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

from minimq_common.record_limit import RecordLimit

#: Loggers of other packages that log on the event loops of clients. "grpc" and "minimq_common" include their modules.
_OTHER_LOGGERS = ("asyncio", "concurrent.futures", "grpc", "minimq_common", "py.warnings")
#: Most queued records; further ones are dropped and counted.
_MOST_WAITING = 1_000
#: Warnings and errors of one kind in 10 s; further ones are only counted: a listener may fail on each message.
_MAX_RECORDS = 30
#: At the end of the process, for handlers to finish.
_FLUSH_S = 2.0


def client_logger(name: str) -> logging.Logger:
    """Return the logger of a module whose handlers run on the log thread."""
    logger = logging.getLogger(name)
    logger.addFilter(_handover)
    return logger


@contextmanager
def handed_over() -> Iterator[None]:
    """Pass records of other packages' loggers on this thread to the log thread, too."""
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
    """Wait up to `timeout_s` seconds until handlers have processed all records."""
    _handover.flush(timeout_s)


class _Handover(logging.Filter):
    """Lets a record pass only on the log thread, which runs while there are any; else queues it. Thread-safe.

    Never blocks. If a handler on the log thread uses a client, what that logs is dropped: it would call the handler
    again, without end.
    """

    def __init__(self) -> None:
        super().__init__()
        self._has_ended = False
        self.reset()

    def reset(self) -> None:
        """Reset in a fork, which has no log thread."""
        _threads.clear()
        self._records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        self._runs = threading.Lock()  # held by the log thread; code that logs never waits for it
        self._thread = 0
        self._current: logging.LogRecord | None = None
        self._dropped = 0
        self._limit = RecordLimit(_MAX_RECORDS)  # used by the log thread only

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether this is the log thread; otherwise queue the record."""
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
                _thread.start_new_thread(self._run, ())  # takes no lock of `threading`
            except RuntimeError:  # the interpreter shuts down, or has too many threads
                self._run()

    def flush(self, timeout_s: float) -> None:
        """See the module function."""
        if threading.get_ident() == self._thread:
            return
        until = time.monotonic() + timeout_s
        while self._runs.acquire(timeout=max(until - time.monotonic(), 0.0)):
            self._runs.release()
            if self._records.empty():
                return
            self._start()  # a record was queued while this held the lock, so no log thread was started

    def end(self) -> None:
        """Flush at the end of the process; later records are handled on the thread that logs them."""
        self.flush(_FLUSH_S)
        self._has_ended = True
        for summary in self._limit.end():
            logging.getLogger(summary.name).handle(summary)

    def before_fork(self) -> None:
        """Make children of multiprocessing flush when they end: they run no `atexit` hooks."""
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
                record = self._records.get_nowait()
            except queue.Empty:
                break
            if record.levelno < logging.WARNING:
                self._handle(record)
                continue
            summaries, is_written = self._limit.check(record)
            for each in (*summaries, record) if is_written else summaries:
                self._handle(each)
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            text = "client: log records were dropped number=%d"
            self._handle(log.makeRecord(log.name, logging.WARNING, __file__, 0, text, (dropped,), None))

    def _handle(self, record: logging.LogRecord) -> None:
        self._current = record
        try:
            logging.getLogger(record.name).handle(record)
        except Exception:  # noqa: BLE001 - raised by a filter; `logging` reports errors of handlers itself
            self._dropped += 1
        self._current = None


class _HandoverOfOthers(logging.Filter):
    """Applies `_Handover` to records that are logged on the event loop of a client, or on the log thread."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to handle the record on this thread."""
        thread = threading.get_ident()
        return (thread not in _threads and thread != _handover._thread) or _handover.filter(record)


_threads: set[int] = set()
_handover, _handover_of_others = _Handover(), _HandoverOfOthers()
log = client_logger(__name__)
atexit.register(_handover.end)
os.register_at_fork(before=_handover.before_fork, after_in_child=_handover.reset)
