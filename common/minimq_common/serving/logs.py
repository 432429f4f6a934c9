"""Log records as lines for people, or as objects for machines.

The text of a record is what happened, and then what it happened to: `"registered nameserver=%s"`. As JSON the first
part is `message` and the rest is `fields`, whose values keep their types.

Values come from whoever calls a server. So what a record shows of a text is cut to a bound, and as text a record is one
line: no value can look like a record of its own. Only a traceback has more lines, which are indented.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

LogFormat = Literal["text", "json"]

#: A value in the text of a record, with its name if it has one.
_VALUE = re.compile(r"(?:\b(\w+)=)?%[-#0 +]*[\d.]*[a-zA-Z]")


#: Most characters of a text in a record, of the message of a record, and of a traceback.
_MOST_OF_VALUE = 500
_MOST_OF_MESSAGE = 4_000
_MOST_OF_TRACEBACK = 20_000
#: All that ends a line, steers a terminal or turns the direction of what follows.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def formatter(name: LogFormat) -> logging.Formatter:
    """Return the formatter of a format."""
    return JsonFormatter() if name == "json" else TextFormatter()


class TextFormatter(logging.Formatter):
    """Writes one line a record: time, level, logger, message; then the traceback if there is one, indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging has it
        """Return the line of a record."""
        record.message = _CONTROL.sub(_escaped, _bounded_message(record))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as logging has it
        """Return a traceback."""
        lines = _cut(super().formatException(ei), _MOST_OF_TRACEBACK).split("\n")
        return "\n".join(f"    {_CONTROL.sub(_escaped, line)}" for line in lines)


class JsonFormatter(logging.Formatter):
    """Writes one object a line: time (UTC), level, logger, message, and where there are such fields and exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        message, fields = _parts(record)
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        if fields:
            line["fields"] = fields
        if record.exc_info:
            line["exception"] = _cut(self.formatException(record.exc_info), _MOST_OF_TRACEBACK)
        return _CONTROL.sub(_escaped_in_json, json.dumps(line, ensure_ascii=False, default=str))


def _parts(record: logging.LogRecord) -> tuple[str, Mapping[str, Any]]:
    text, values = str(record.msg), record.args
    found = [(match[1], match.start()) for match in _VALUE.finditer(text.replace("%%", "  "))]
    first = next((number for number, (name, _) in enumerate(found) if name), len(found))
    names = [name for name, _ in found[first:]]
    if not names or None in names or not isinstance(values, tuple) or len(values) != len(found):
        return _bounded_message(record), {}  # it has another form
    fields = {
        name: value if isinstance(value, bool | int | float) else _cut(str(value), _MOST_OF_VALUE)
        for name, value in zip(names, values[first:], strict=True)
    }
    message = text[: found[first][1]] % tuple(map(_bounded, values[:first]))
    return _cut(message, _MOST_OF_MESSAGE).rstrip(), fields


def _bounded_message(record: logging.LogRecord) -> str:
    text, values = str(record.msg), record.args
    if isinstance(values, tuple) and values:
        text %= tuple(map(_bounded, values))
    elif values:
        text %= values
    return _cut(text, _MOST_OF_MESSAGE)


def _bounded(value: object) -> object:
    if isinstance(value, str):
        return _cut(value, _MOST_OF_VALUE)
    if isinstance(value, BaseException):
        return _CutError(value)
    return value


class _CutError:
    """An exception whose texts are cut."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __str__(self) -> str:
        return _cut(str(self._error), _MOST_OF_VALUE)

    def __repr__(self) -> str:
        return _cut(repr(self._error), _MOST_OF_VALUE)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def _escaped_in_json(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


#: So many records of one kind are written in so many seconds; further ones are counted.
_MOST = 100
_WINDOW_S = 10.0
#: Kinds of records that are counted at a time.
_MOST_KINDS = 1_000

#: `extra` of a record that is written however many there are of its kind: an account of what was done to data.
ALWAYS_WRITTEN = {"always_written": True}

#: What tells a kind of record: its logger, level and text, without values.
_Kind = tuple[str, int, str]


class SummingHandler(logging.StreamHandler[TextIO]):
    """Writes records to a stream, at most 100 of one kind in a time; the next one of any kind tells what was left out.

    Whatever a client sends again and again neither fills the disk nor holds up others by the time that writing takes.
    Records with `ALWAYS_WRITTEN` are not counted.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream or sys.stderr)
        self._clock = clock
        #: When counting of a kind began, and how many there were. Protected by the handler's lock.
        self._windows: dict[_Kind, tuple[float, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record unless there were too many of its kind; the lock of the handler is held."""
        now = self._clock()
        while self._windows and now - next(iter(self._windows.values()))[0] >= _WINDOW_S:
            self._end(next(iter(self._windows)))
        if hasattr(record, "always_written"):
            super().emit(record)
            return
        kind = record.name, record.levelno, str(record.msg)
        if kind not in self._windows and len(self._windows) >= _MOST_KINDS:
            self._end(next(iter(self._windows)))
        began_at, count = self._windows.get(kind, (now, 0))
        self._windows[kind] = began_at, count + 1
        if count < _MOST:
            super().emit(record)

    def close(self) -> None:
        """Tell what was left out last."""
        self.acquire()
        try:
            for kind in [*self._windows]:
                self._end(kind)
        finally:
            self.release()
        super().close()

    def _end(self, kind: _Kind) -> None:
        _, count = self._windows.pop(kind)
        if count > _MOST:
            name, level, text = kind
            message = "more lines of the same kind were left out count=%d text=%r"
            super().emit(logging.LogRecord(name, level, "", 0, message, (count - _MOST, text), None))
