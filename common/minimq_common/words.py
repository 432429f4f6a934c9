"""Counts in words."""

from __future__ import annotations


def count_of(count: int, thing: str, things: str = "") -> str:
    """Return "1 message", "2,000 messages".

    Args:
        count: how many.
        thing: the word for one.
        things: the word for several, if it is not the other one with an "s".
    """
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"
