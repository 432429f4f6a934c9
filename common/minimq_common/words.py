"""Counts and values in words."""

from __future__ import annotations


def count_of(count: int, thing: str, things: str = "") -> str:
    """Return "1 message", "2,000 messages"."""
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"


def kind_of(value: object) -> str:
    """Return "a list", "an int", or "None" for None."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"
