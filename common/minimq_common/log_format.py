"""Log records as lines for people, or as objects for machines.

The text of a record is what happened, and then what it happened to: `"registered nameserver=%s"`. As JSON the first
part is `message` and the rest is `fields`, whose values keep their types.
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


def formatter(name: LogFormat) -> logging.Formatter:
    """Return the formatter of a format."""
    if name == "json":
        return JsonFormatter()
    return logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")


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
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _parts(record: logging.LogRecord) -> tuple[str, Mapping[str, Any]]:
    """Return what happened, and to what."""
    text, values = str(record.msg), record.args
    found = [(match[1], match.start()) for match in _VALUE.finditer(text.replace("%%", "  "))]
    first = next((number for number, (name, _) in enumerate(found) if name), len(found))
    names = [name for name, _ in found[first:]]
    if not names or None in names or not isinstance(values, tuple) or len(values) != len(found):
        return record.getMessage(), {}  # it has another form
    fields = {
        name: value if isinstance(value, bool | int | float) else str(value)
        for name, value in zip(names, values[first:], strict=True)
    }
    return (text[: found[first][1]] % values[:first]).rstrip(), fields
