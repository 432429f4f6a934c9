"""The names by which the console is called, and what it rejects because it would be unsafe."""

from __future__ import annotations

import pytest

from minimq_common.errors import InvalidArgument
from minimq_console.console_options import ConsoleOptions, host_of, is_of_this_site
from support.cases import for_each

BEYOND = "0.0.0.0"


@for_each(
    ("bound", "header", "allowed"),
    [
        ("10.0.0.7", "10.0.0.7:8088", True),
        ("10.0.0.7", "10.0.0.8:8088", False),
        ("fd00::7", "[fd00::7]:8088", True),
        (BEYOND, f"{BEYOND}:8088", False),
        ("::", "[::]:8088", False),
        ("127.0.0.1", "a" * 400, False),
        ("127.0.0.1", "named.example", True),
    ],
)
def test_hosts(bound: str, header: str, allowed: bool) -> None:
    assert (host_of(header) in ConsoleOptions(bound, allowed_hosts=("named.example",)).hosts) is allowed


@for_each(
    ("headers", "own"),
    [
        ({"host": "a:1"}, True),
        ({"host": "a:1", "origin": "http://a:1"}, True),
        ({"host": "a", "origin": "https://a"}, True),
        ({"host": "a:1", "origin": "http://a:2"}, False),
        ({"host": "a:1", "origin": "null"}, False),
        ({"host": "a:1", "origin": "http://[a:1"}, False),
        ({"host": "a:1", "sec-fetch-site": "none"}, False),
    ],
)
def test_where_a_request_comes_from(headers: dict[str, str], own: bool) -> None:
    assert is_of_this_site(headers) is own


@for_each(
    ("options", "asks_for_keys", "why"),
    [
        (ConsoleOptions(), False, None),
        (ConsoleOptions(allow_changes=True), False, None),
        (ConsoleOptions(BEYOND), False, None),
        (ConsoleOptions(BEYOND, allow_changes=True), False, "--allow-anyone"),
        (ConsoleOptions(BEYOND, allow_changes=True, allow_anyone=True), False, None),
        (ConsoleOptions(), True, None),
        (ConsoleOptions(BEYOND), True, "without encryption"),
        (ConsoleOptions(BEYOND, tls_certificate="a", tls_key="b", allow_changes=True), True, None),
        (ConsoleOptions(tls_key="b"), True, "go together"),
    ],
)
def test_what_is_unsafe_is_rejected(options: ConsoleOptions, asks_for_keys: bool, why: str | None) -> None:
    if why is None:
        options.check(asks_for_keys=asks_for_keys)
        return
    with pytest.raises(InvalidArgument, match=why):
        options.check(asks_for_keys=asks_for_keys)
