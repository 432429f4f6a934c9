"""Bounds the log records of each kind that a server writes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Records of one kind that are written per window; further ones are only counted.
MAX_RECORDS = 100
#: The same for their characters, where these are counted.
_MAX_CHARS = 100_000
_WINDOW_S = 10.0
#: Kinds of records that are tracked at a time.
_MAX_KINDS = 1_000

#: `extra` of a record that is exempt from the limit, such as one that documents a change of data.
ALWAYS_WRITTEN = {"always_written": True}

#: Logger, level, and the text without values. A text that has no values may contain them already, as those of asyncio
#: do; the line of code that logs it stands for it.
_Kind = tuple[str, int, str]


def _kind_of(record: logging.LogRecord) -> _Kind:
    return record.name, record.levelno, str(record.msg) if record.args else f"{record.pathname}:{record.lineno}"


@dataclass(slots=True)
class _Window:
    began_at: float
    text: str
    records: int = 0
    chars: int = 0
    left_out: int = 0


class RecordLimit:
    """Decides which records of one kind are written in a window of 10 s, and counts the others. Not thread-safe."""

    def __init__(self, max_records: int = MAX_RECORDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_records = max_records
        self._clock = clock
        #: Oldest first.
        self._windows: dict[_Kind, _Window] = {}

    def check(self, record: logging.LogRecord) -> tuple[list[logging.LogRecord], bool]:
        """Return the summaries to write first, with the number of records left out, and whether to write this one."""
        now, summaries = self._clock(), list[logging.LogRecord]()
        while self._windows and now - next(iter(self._windows.values())).began_at >= _WINDOW_S:
            summaries += self._end(next(iter(self._windows)))
        if hasattr(record, "always_written"):
            return summaries, True
        kind = _kind_of(record)
        if kind not in self._windows and len(self._windows) >= _MAX_KINDS:
            summaries += self._end(next(iter(self._windows)))
        window = self._windows.setdefault(kind, _Window(now, str(record.msg)))
        is_over = window.records >= self._max_records or window.chars >= _MAX_CHARS
        if is_over:
            window.left_out += 1
        else:
            window.records += 1
        return summaries, not is_over

    def count(self, record: logging.LogRecord, chars: int) -> None:
        """Count the characters of a written record."""
        window = self._windows.get(_kind_of(record))
        if window is not None:
            window.chars += chars

    def end(self) -> list[logging.LogRecord]:
        """End all windows; return their summaries."""
        return [summary for kind in [*self._windows] for summary in self._end(kind)]

    def _end(self, kind: _Kind) -> list[logging.LogRecord]:
        window = self._windows.pop(kind)
        if not window.left_out:
            return []
        name, level, _ = kind
        message = "more lines of the same kind were left out count=%d text=%r"
        return [logging.LogRecord(name, level, "", 0, message, (window.left_out, window.text), None)]
