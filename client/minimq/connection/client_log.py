"""Keeps log handlers off the event loops of clients, and bounds the records of each kind.

A log handler of the program may do anything: block, or send its records with a client while it holds a lock. An event
loop that waits for that lock would never send them. So a record that is logged on an event loop is handled on a thread.
Modules of the client log while they hold no lock that an event loop needs.
"""

from __future__ import annotations

import _thread
import atexit
import logging
import os
import threading
import traceback
from queue import SimpleQueue

from minimq.connection.fork_guard import loop_threads
from minimq_common.record_limit import RecordLimit

#: Most queued records; further ones are dropped: a handler blocks.
_MAX_WAITING = 1_000
#: Warnings and errors of one kind in 10 s; further ones are only counted: a listener may fail on each message.
_MAX_RECORDS = 30
#: At the end of the process, for handlers to finish.
_FLUSH_S = 2.0
_PASSED = "has_passed_minimq"


def client_logger(name: str) -> logging.Logger:
    logger = logging.getLogger(name)
    logger.addFilter(_filter)
    return logger


def flush(timeout_s: float = _FLUSH_S) -> None:
    """Wait up to `timeout_s` seconds until handlers have processed all records."""
    _filter.flush(timeout_s)


class _OffLoop(logging.Filter):
    """Rejects records above the limit, and queues those of event loops for a thread. Thread-safe; never blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        """Reset in a fork, which has no thread."""
        self._lock = threading.RLock()  # protects `_limit`
        self._limit = RecordLimit(_MAX_RECORDS)
        self._records: SimpleQueue[logging.LogRecord | threading.Event] = SimpleQueue()
        self._starts = threading.Lock()  # taken once, to start the thread

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to handle the record on this thread."""
        if _PASSED in vars(record):
            return True
        passed = self._within_limit(record)
        for each in passed:
            vars(each)[_PASSED] = True
        if threading.get_ident() in loop_threads:
            self._hand_over(passed)
            return False
        for each in passed:
            if each is not record:
                logging.getLogger(each.name).handle(each)
        return record in passed

    def _within_limit(self, record: logging.LogRecord) -> list[logging.LogRecord]:
        if record.levelno < logging.WARNING:
            return [record]
        with self._lock:
            summaries, is_written = self._limit.check(record)
        return [*summaries, record] if is_written else summaries

    def _hand_over(self, records: list[logging.LogRecord]) -> None:
        for record in records:
            if self._records.qsize() < _MAX_WAITING:
                self._records.put(record)
        if self._starts.acquire(blocking=False):
            _thread.start_new_thread(self._run, ())  # takes no lock of `threading`, unlike a `Thread`

    def flush(self, timeout_s: float) -> None:
        if self._starts.locked():
            is_handled = threading.Event()
            self._records.put(is_handled)
            is_handled.wait(timeout_s)

    def _run(self) -> None:
        while True:
            item = self._records.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                logging.getLogger(item.name).handle(item)
            except Exception:  # noqa: BLE001 - raised by a handler or a filter of the program
                traceback.print_exc()


_filter = _OffLoop()
atexit.register(flush)
os.register_at_fork(after_in_child=_filter.reset)
# Their debug records come from event loops, and one from the start of a connection, while its lock is held.
for _name in ("asyncio", "grpc"):
    if logging.getLogger(_name).level == logging.NOTSET:
        logging.getLogger(_name).setLevel(logging.INFO)
