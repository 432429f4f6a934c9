"""Requests and forms that are rejected, by the console itself or by the cluster."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from minimq_common.errors import (
    GroupConflict,
    InvalidArgument,
    MinimqError,
    NotInSync,
    TopicExists,
    TopicNotFound,
    TransactionEnded,
)
from minimq_console.answers import failure_of
from minimq_console.console_options import host_of
from minimq_console.guard import MAX_FORM_BYTES, Guard
from minimq_console.page import _event_of
from minimq_console.produce import _properties_of
from support.cases import for_each

HOST = "127.0.0.1:8088"


@pytest.mark.parametrize(
    ("kind", "status"),
    [(TopicNotFound, 404), (TopicExists, 409), (GroupConflict, 409), (TransactionEnded, 409), (NotInSync, 502)],
)
def test_a_conflict_with_what_is_there_is_told_from_other_rejections(kind: type[MinimqError], status: int) -> None:
    assert failure_of(kind("no")).status == status


@for_each(
    ("length", "status"), [(None, 411), ("many", 411), (str(MAX_FORM_BYTES + 1), 413), (str(MAX_FORM_BYTES), None)]
)
def test_a_form_says_how_long_it_is(length: str | None, status: int | None) -> None:
    headers = [(b"host", HOST.encode()), *([(b"content-length", length.encode())] if length else [])]
    app: Any = None
    guard = Guard(app, app, [host_of(HOST) or ""])
    rejection = guard._rejection(Request({"type": "http", "method": "POST", "path": "/sign-out", "headers": headers}))
    assert (None if rejection is None else rejection.status_code) == status


def test_properties_in_a_form_are_lines_and_blanks_around_them_do_not_count() -> None:
    assert _properties_of(" region = eu \n\nrule=a = b\n") == {"region": "eu", "rule": "a = b"}
    for end in ("\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\xa0"):  # line ends and blanks, but not of a form
        value = f"one{end}page=7{end}"
        assert _properties_of(f"note={value}\r\ncity=Bern") == {"note": value, "city": "Bern"}
        assert _event_of(f"<p>{value}\r\n</p>") == f"event: part\ndata: <p>{value}\ndata: </p>\n\n"
    for wrong in ("region", "= eu", "a=1\n a =2"):
        with pytest.raises(InvalidArgument, match=r"^Properties: line "):
            _properties_of(wrong)
