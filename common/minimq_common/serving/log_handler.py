"""The stream that log records go to, on which lines that repeat too often are summed up."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

#: So many records of one kind are written in so many seconds; further ones are counted.
_MOST = 100
_WINDOW_S = 10.0
#: Kinds of records that are counted at a time.
_MOST_KINDS = 1_000

#: `extra` of a record that is written however many there are of its kind: an account of what was done to data.
ALWAYS_WRITTEN = {"always_written": True}

#: What tells a kind of record: its logger, level and text, without values.
_Kind = tuple[str, int, str]


@dataclass(slots=True)
class _Window:
    began_at: float
    count: int = 0


class SummingHandler(logging.StreamHandler[TextIO]):
    """Writes records to a stream, at most 100 of one kind in a time; how many were left out is a record at its end.

    Whatever a client sends again and again neither fills the disk nor holds up others by the time that writing takes.
    Records with `ALWAYS_WRITTEN` are not counted.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        window_s: float = _WINDOW_S,
    ) -> None:
        super().__init__(stream or sys.stderr)
        self._clock = clock
        self._window_s = window_s
        # All below is protected by the handler's lock.
        self._windows: dict[_Kind, _Window] = {}
        #: Ends windows in which records were left out, also when no further record comes.
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record unless there were too many of its kind; the lock of the handler is held."""
        if hasattr(record, "always_written"):
            super().emit(record)
            return
        now = self._clock()
        self._sum_up(now)
        kind = record.name, record.levelno, str(record.msg)
        window = self._windows.get(kind)
        if window is None:
            if len(self._windows) >= _MOST_KINDS:
                self._end(next(iter(self._windows)))
            window = self._windows[kind] = _Window(now)
        window.count += 1
        if window.count <= _MOST:
            super().emit(record)
        elif self._timer is None:
            self._start_timer(now)

    def close(self) -> None:
        """Tell what was left out last."""
        with self._locked():
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            for kind in list(self._windows):
                self._end(kind)
        super().close()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def _start_timer(self, now: float) -> None:
        began_at = next((window.began_at for window in self._windows.values() if window.count > _MOST), None)
        if began_at is None:
            return
        self._timer = threading.Timer(max(0.0, began_at + self._window_s - now), self._on_time)
        self._timer.daemon = True
        self._timer.start()

    def _on_time(self) -> None:
        with self._locked():
            if self._timer is threading.current_thread():  # otherwise it was closed meanwhile
                self._timer = None
                now = self._clock()
                self._sum_up(now)
                self._start_timer(now)

    def _sum_up(self, now: float) -> None:
        while self._windows:
            kind, window = next(iter(self._windows.items()))
            if now - window.began_at < self._window_s:
                return
            self._end(kind)

    def _end(self, kind: _Kind) -> None:
        window = self._windows.pop(kind)
        if window.count > _MOST:
            name, level, text = kind
            values = window.count - _MOST, text
            message = "more lines of the same kind were left out count=%d text=%r"
            super().emit(logging.LogRecord(name, level, "", 0, message, values, None))
