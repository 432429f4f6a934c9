"""Texts of commands and forms as values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from minimq.admin.values import moment_or_end, offset_or_moment, properties_of
from minimq.admin.values import queue as parse_queue
from minimq_common.errors import InvalidArgument
from support.cases import for_each

FROM = "--from"


def test_a_time_before_now_is_a_moment_from_then_on() -> None:
    found = moment_or_end(FROM, "-15m")
    assert isinstance(found, datetime)
    assert abs(datetime.now(UTC) - timedelta(minutes=15) - found) < timedelta(seconds=10)


@pytest.mark.parametrize("text", ["earliest", "latest"])
def test_a_beginning_and_an_end_stay_as_they_are(text: str) -> None:
    assert moment_or_end(FROM, text) == text


@pytest.mark.parametrize("text", ["soon", "2026-01-31T08:00", ""])
def test_what_is_no_time_is_rejected_under_the_name_of_the_option(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^--from is "):
        moment_or_end(FROM, text)


def test_a_start_in_the_future_is_rejected() -> None:
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    for option_of in (moment_or_end, offset_or_moment):
        with pytest.raises(InvalidArgument, match=r"^--from is .* in the future: .*'latest'"):
            option_of(FROM, tomorrow)


def test_an_error_names_each_form_that_is_taken() -> None:
    with pytest.raises(InvalidArgument, match=r"must be an offset, 'earliest', 'latest', a time .*1769846400000ms"):
        offset_or_moment(FROM, "tomorrow")


@for_each("text", ["", "broker-a", ":1", "broker-a:", "broker-a:-1", "broker-a:x", "a:" + "9" * 5000])
def test_anything_else_is_rejected(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a queue: write BROKER:ID"):
        parse_queue("--queue", text, "t")


@for_each(
    ("texts", "said"),
    [
        (["region"], "--property 'region' is not a property: write NAME=VALUE"),
        (["=eu"], "--property '=eu' is not a property"),
        (["x" * 100], f"--property '{'x' * 60}...' is not a property"),
        (["a=1", "a=2"], "--property a is given twice"),
    ],
)
def test_what_is_no_property_is_rejected(texts: list[str], said: str) -> None:
    with pytest.raises(InvalidArgument) as rejected:
        properties_of("--property", texts)
    assert rejected.value.message.startswith(said)
