"""The kinds of bounds in the table of `protocol_bounds`. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Text(NamedTuple):
    """Most characters of a text."""

    most: int


class Octets(NamedTuple):
    """Most bytes of a field that holds bytes."""

    most: int


class Range(NamedTuple):
    """Least and largest value of a number."""

    least: int
    most: int


class Items(NamedTuple):
    """Most items of a list."""

    most: int
    #: The bound of each item that is a text or bytes; messages have bounds of their own.
    each: Text | Octets | Range | None = None
    walked: bool = True


class Entries(NamedTuple):
    """Most entries of a map, and the bound of each value that is a text."""

    most: int
    each: Text


Bound = Text | Octets | Range | Items | Entries
