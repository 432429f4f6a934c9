"""Figures, times and addresses as the pages show them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from urllib.parse import quote, urlencode

from minimq.operations.words import duration_of, size_of

#: Stands for what is not known.
UNKNOWN = "\N{EN DASH}"


def number(value: float | None) -> str:
    """Return a count: "12,345"; a dash for what is not known."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Return a rate: "12,345" or, when small, "0.4"; a dash for what is not known."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def size(value: float | None) -> str:
    """Return a number of bytes in the most readable unit: "1.2 GB"."""
    return UNKNOWN if value is None else size_of(value)


def duration(seconds: float | None) -> str:
    """Return a time in its two largest units: "3d 4h"."""
    return UNKNOWN if seconds is None else duration_of(seconds)


def instant(value: datetime | None) -> str:
    """Return a time in UTC, to the second: "2026-01-31 08:00:00Z"."""
    return UNKNOWN if value is None else value.strftime("%Y-%m-%d %H:%M:%SZ")


def share(value: float | None) -> str:
    """Return a share: "71 %"."""
    return UNKNOWN if value is None else f"{value * 100:.0f} %"


def segment(name: str) -> str:
    """Return a name as a part of the path of an address."""
    return quote(name, safe="")


def address(path: str, names: Mapping[str, str]) -> str:
    """Return an address: a path such as "/topics/{topic}" with names in it."""
    return path.format_map({name: segment(value) for name, value in names.items()})


def with_query(query: Mapping[str, str], **changes: object) -> str:
    """Return the query of an address, with some parameters changed, or removed if they are None or empty."""
    wanted = {**query, **{name: "" if value is None else str(value) for name, value in changes.items()}}
    return "?" + urlencode({name: value for name, value in wanted.items() if value})
