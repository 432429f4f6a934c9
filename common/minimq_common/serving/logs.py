"""Formats log records as text lines or as JSON objects, and limits their number.

The text of a record is an event followed by its fields: `"registered nameserver=%s"`. In JSON, the event is `message`,
and the rest is `fields`, whose numbers and booleans keep their types.

Values may come from clients. So long values are cut, and a record in text format is one line, so that no value can
imitate another record. Only tracebacks have more lines, which are indented.
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

from minimq_common.record_limit import RecordLimit

LogFormat = Literal["text", "json"]

#: A placeholder in the text of a record, with its name if it has one.
_VALUE = re.compile(r"(?:\b(\w+)=)?%[-#0 +]*[\d.]*[a-zA-Z]")


_MAX_VALUE_CHARS = 500
_MAX_MESSAGE_CHARS = 4_000
_MAX_TRACEBACK_CHARS = 20_000
#: Line ends, control characters of terminals, and marks that change the direction of text.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def formatter(name: LogFormat) -> logging.Formatter:
    return JsonFormatter() if name == "json" else TextFormatter()


class TextFormatter(logging.Formatter):
    """Writes one line per record: time, level, logger, message; then an indented traceback, if there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging has it
        record.message = _CONTROL.sub(_escaped, _bounded_message(record))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as logging has it
        lines = _cut(super().formatException(ei), _MAX_TRACEBACK_CHARS).split("\n")
        return "\n".join(f"    {_CONTROL.sub(_escaped, line)}" for line in lines)


class JsonFormatter(logging.Formatter):
    """Writes one JSON object per line: time (UTC), level, logger, message and, if present, fields and exception."""

    def format(self, record: logging.LogRecord) -> str:
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
            line["exception"] = _cut(self.formatException(record.exc_info), _MAX_TRACEBACK_CHARS)
        text = json.dumps(line, ensure_ascii=False, default=str)
        return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _parts(record: logging.LogRecord) -> tuple[str, Mapping[str, Any]]:
    text, values = str(record.msg), record.args
    found = [(match[1], match.start()) for match in _VALUE.finditer(text.replace("%%", "  "))]
    first = next((number for number, (name, _) in enumerate(found) if name), len(found))
    names = [name for name, _ in found[first:]]
    if not names or None in names or not isinstance(values, tuple) or len(values) != len(found):
        return _bounded_message(record), {}  # not an event with fields
    fields = {
        name: value if isinstance(value, bool | int | float) else _cut(str(value), _MAX_VALUE_CHARS)
        for name, value in zip(names, values[first:], strict=True)
    }
    message = text[: found[first][1]] % tuple(map(_bounded, values[:first]))
    return _cut(message, _MAX_MESSAGE_CHARS).rstrip(), fields


def _bounded_message(record: logging.LogRecord) -> str:
    text, values = str(record.msg), record.args
    if isinstance(values, tuple) and values:
        text %= tuple(map(_bounded, values))
    elif values:
        text %= values
    return _cut(text, _MAX_MESSAGE_CHARS)


def _bounded(value: object) -> object:
    if isinstance(value, str):
        return _cut(value, _MAX_VALUE_CHARS)
    if isinstance(value, BaseException):
        return _ShortenedError(value)
    return value


class _ShortenedError:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __str__(self) -> str:
        return _cut(str(self._error), _MAX_VALUE_CHARS)

    def __repr__(self) -> str:
        return _cut(repr(self._error), _MAX_VALUE_CHARS)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


class RateLimitedHandler(logging.StreamHandler[TextIO]):
    """Writes records to a stream, at most 100 of one kind per 10 s, and later a line with the number left out."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream or sys.stderr)
        self._limit = RecordLimit(clock=clock)  # protected by the handler's lock

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless its kind is over the limit. Called with the handler's lock held."""
        summaries, is_written = self._limit.check(record)
        for each in (*summaries, record) if is_written else summaries:
            super().emit(each)

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record, and count its characters."""
        text = super().format(record)
        self._limit.count(record, len(text))
        return text

    def close(self) -> None:
        """Write how many records were left out, and close the handler."""
        self.acquire()
        try:
            for summary in self._limit.end():
                super().emit(summary)
        finally:
            self.release()
        super().close()
