"""An error that shows the place in the text where something is wrong."""

from __future__ import annotations

from unicodedata import east_asian_width

from minimq_common.errors import InvalidArgument

#: Characters of a long line that are shown on each side of the place.
_AROUND = 60


def mistake(text: str, place: int, problem: str) -> InvalidArgument:
    """Return an error with the line of the text in which the place is, and a caret under the place."""
    start = text.rfind("\n", 0, place) + 1
    end = text.find("\n", place) if "\n" in text[place:] else len(text)
    first, last = max(start, place - _AROUND), min(end, place + _AROUND)
    before = ("..." if first > start else "") + printable(text[first:place])
    after = printable(text[place:last]) + ("..." if last < end else "")
    return InvalidArgument(f"where: {problem}:\n  {before}{after}\n  {' ' * _columns(before)}^")


def printable(text: str) -> str:
    """Return a text of the same length that a terminal shows on one line."""
    return "".join(char if char.isprintable() else " " for char in text)


def _columns(text: str) -> int:
    return sum(2 if east_asian_width(char) in {"W", "F"} else 1 for char in text)
