"""URLs of pages, and the parameters in them, each with a bound. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeVar
from urllib.parse import quote, urlencode

from minimq_common.errors import InvalidArgument
from minimq_common.text_units import quoted

Row = TypeVar("Row")
Default = TypeVar("Default", bound=int | None)

#: Maximum characters of a text parameter.
_MAX_CHARACTERS = 1_000
#: Digits of a number: no offset has more.
_MAX_DIGITS = 19
#: Default and maximum number of rows in a page of a table.
_ROWS, _MAX_ROWS = 25, 100
#: Maximum number of rows to skip, and the same for tables that must read the skipped rows each time.
_MAX_SKIPPED, _MAX_SKIPPED_READS = 10_000_000, 10_000


class WrongParameter(InvalidArgument):
    """A parameter has a wrong value; a page with a field of that name shows the error there."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class Parameters:
    """The query of a URL, and the names in its path. Immutable."""

    def __init__(self, query: Sequence[tuple[str, str]], path: Mapping[str, str] | None = None) -> None:
        self._values = dict(query)
        self._path = dict(path or {})
        if len(self._values) != len(query):
            names = [name for name, _ in query]
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidArgument(f"the parameter {quoted(twice)} is given twice: give it once")

    @property
    def query(self) -> Mapping[str, str]:
        """The query parameters as they were given, for links to other pages of the same table."""
        return dict(self._values)

    def without(self, name: str) -> Parameters:
        return Parameters([each for each in self._values.items() if each[0] != name], self._path)

    def name(self, part: str) -> str:
        return self._path[part]

    @property
    def names(self) -> Mapping[str, str]:
        return dict(self._path)

    def given(self, name: str) -> str | None:
        """Return a text as it was given, with LF as line ends; None if it was not given."""
        value = self._values.get(name)
        return None if value is None else value.replace("\r\n", "\n")

    def text(self, name: str, default: str = "", *, most: int = _MAX_CHARACTERS) -> str:
        """Return a text without blanks around it. Raises `InvalidArgument` when it is too long, or has a NUL."""
        value = self._values.get(name, default).strip()
        if len(value) > most:
            raise WrongParameter(name, f"the parameter {name} has {len(value)} characters: at most {most} are allowed")
        if "\0" in value:
            raise WrongParameter(name, f"the parameter {name} has a NUL character: leave it out")
        return value

    def number(self, name: str, default: Default, low: int, high: int) -> int | Default:
        """Return a whole number between two bounds, both included. Raises `InvalidArgument`."""
        value = self._values.get(name, "").strip()
        if not value:
            return default
        if not re.fullmatch(rf"-?[0-9]{{1,{_MAX_DIGITS}}}", value):
            raise WrongParameter(name, f"the parameter {name} is {quoted(value)}: it must be a whole number")
        found = int(value)
        if not low <= found <= high:
            raise WrongParameter(name, f"the parameter {name} is {found}: it must be {low} to {high}")
        return found

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """Return one of the choices. Raises `InvalidArgument`."""
        value = self._values.get(name, "").strip() or default
        if value not in choices:
            text = f"the parameter {name} is {quoted(value)}: it must be one of {', '.join(choices)}"
            raise WrongParameter(name, text)
        return value

    def flag(self, name: str) -> bool:
        """Return whether a parameter is "1"; "0" or absent is False. Raises `InvalidArgument`."""
        return self.choice(name, ("0", "1"), "0") == "1"

    def rows(self, most_skipped: int = _MAX_SKIPPED) -> tuple[int, int]:
        """Return how many rows of a table are skipped, and how many follow. Raises `InvalidArgument`."""
        return self.number("skip", 0, 0, most_skipped), self.number("rows", _ROWS, 1, _MAX_ROWS)

    def part_of(self, rows: Sequence[Row]) -> tuple[Sequence[Row], dict[str, int]]:
        """Return the requested rows of a table, and their place in it. Raises `InvalidArgument`."""
        skip, count = self.rows()
        shown = rows[skip : skip + count]
        return shown, {"skipped": min(skip, len(rows)), "shown": len(shown), "total": len(rows), "rows": count}

    def part_from(self, rows: Iterable[Row]) -> tuple[Sequence[Row], dict[str, int | None]]:
        """Do as `part_of` for an iterator of rows; the total is None if there are more."""
        skip, count = self.rows(_MAX_SKIPPED_READS)
        found = list(islice(rows, skip, skip + count + 1))
        shown = found[:count]
        total = None if len(found) > count else skip + len(shown)
        return shown, {"skipped": skip, "shown": len(shown), "total": total, "rows": count}


def segment(name: str) -> str:
    return quote(name, safe="")


def address(path: str, names: Mapping[str, str]) -> str:
    """Insert names into a URL path such as "/topics/{topic}"."""
    return path.format_map({name: segment(value) for name, value in names.items()})


def with_query(query: Mapping[str, str], **changes: object) -> str:
    """Return the query of a URL, with some parameters changed, or removed if they are None or empty."""
    wanted = {**query, **{name: "" if value is None else str(value) for name, value in changes.items()}}
    return "?" + urlencode({name: value for name, value in wanted.items() if value})
