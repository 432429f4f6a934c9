"""Log records as JSON: one object a line, whose fields keep their types."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from minimq_common.log_format import formatter

NOON = datetime(2024, 2, 29, 12, 0, 0, 250_000, UTC).timestamp()


def record(text: str, *values: object) -> logging.LogRecord:
    made = logging.LogRecord("minimq.some", logging.WARNING, "some.py", 1, text, values, None)
    made.created = NOON
    return made


def written(text: str, *values: object) -> dict[str, Any]:
    line = formatter("json").format(record(text, *values))
    assert "\n" not in line
    decoded: dict[str, Any] = json.loads(line)
    return decoded


def test_a_record_is_an_object() -> None:
    assert written("store: recovered topics=%d seconds=%.3f file=%s", 3, 0.25, "a b") == {
        "time": "2024-02-29T12:00:00.250+00:00",
        "level": "warning",
        "logger": "minimq.some",
        "message": "store: recovered",
        "fields": {"topics": 3, "seconds": 0.25, "file": "a b"},
    }


@pytest.mark.parametrize(
    ("text", "values", "message", "fields"),
    [
        ("started", (), "started", {}),
        ("100% sure", (), "100% sure", {}),
        ("100%% of=%s", ("it",), "100%", {"of": "it"}),
        ("cannot read %s error=%s", ("q", ValueError("x")), "cannot read q", {"error": "x"}),
        ("failed queue=%s/%d", ("t", 3), "failed queue=t/3", {}),
        ("a=%s and %s", (1, 2), "a=1 and 2", {}),
        ("two\nlines é reason=%r", ("x",), "two\nlines é", {"reason": "x"}),
        ("%(name)s is=%(name)s", ({"name": "n"},), "n is=n", {}),
    ],
)
def test_what_happened_comes_before_what_it_happened_to(
    text: str, values: tuple[Any, ...], message: str, fields: dict[str, Any]
) -> None:
    line = written(text, *values)
    assert (line["message"], line.get("fields", {})) == (message, fields)


def test_an_exception_stands_in_the_same_line() -> None:
    try:
        raise ValueError("bad\nvalue")
    except ValueError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    line = formatter("json").format(made)
    assert "\n" not in line
    exception = json.loads(line)["exception"]
    assert exception.startswith("Traceback (most recent call last):\n")
    assert exception.endswith("ValueError: bad\nvalue")


def test_text_is_for_people() -> None:
    line = formatter("text").format(record("registered nameserver=%s", "h:1"))
    assert line.endswith("WARNING minimq.some: registered nameserver=h:1")
