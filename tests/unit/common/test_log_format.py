"""Log records as JSON, one object a line, whose fields keep their types, and as text."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from minimq_common.serving.logs import LogFormat, formatter
from support.cases import for_each

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


@for_each(
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


# ---- Values from others --------------------------------------------------------------------------


FORGED = "c1\n2026-03-01 09:30:00,125 ERROR   minimq_broker: all is lost\r\x1b[31m\u2028"


def test_a_value_cannot_look_like_a_record_of_its_own() -> None:
    line = formatter("text").format(record("session: ended client=%s", FORGED))
    assert len(line.splitlines()) == 1
    assert line.endswith(r"client=c1\n2026-03-01 09:30:00,125 ERROR   minimq_broker: all is lost\r\x1b[31m\u2028")
    assert written("session: ended client=%s", FORGED)["fields"] == {"client": FORGED}


@pytest.mark.parametrize("name", ["text", "json"])
def test_no_character_steers_the_terminal_of_whoever_reads(name: LogFormat) -> None:
    steering = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F))))
    steering += "".join(map(chr, range(0x2066, 0x206A)))
    made = record(f"topic {steering} name=%s", f"é{steering}")
    try:
        raise ValueError(steering)
    except ValueError:
        made.exc_info = sys.exc_info()
    line = formatter(name).format(made)
    assert not set(steering) & set(line) - {"\n"}
    assert "é" in line
    if name == "json":
        assert json.loads(line)["fields"]["name"] == f"é{steering}"


def test_nor_can_an_exception() -> None:
    made = record("failed")
    try:
        raise ValueError(FORGED)
    except ValueError:
        made.exc_info = sys.exc_info()
    first, *rest = formatter("text").format(made).splitlines()
    assert first.endswith("minimq.some: failed")
    assert len(rest) > 3
    assert all(line.startswith("    ") for line in rest)


@for_each("value", ["x" * 1_000_000, ValueError("x" * 1_000_000)])
@for_each("shape", ["not here group=%s reason=%s", "not here group=%s reason=%r", "not here %s %s"])
def test_a_long_value_is_cut_and_hides_no_other(shape: str, value: object) -> None:
    for made in (formatter("text"), formatter("json")):
        line = made.format(record(shape, value, "last"))
        assert len(line) < 2_000
        assert "last" in line
        assert "characters)" in line
