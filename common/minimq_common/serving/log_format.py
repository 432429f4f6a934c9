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
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

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
