"""Addresses of pages, and the parameters in them, each with a bound. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeVar
from urllib.parse import quote, urlencode

from minimq_common.errors import InvalidArgument

Row = TypeVar("Row")
Default = TypeVar("Default", bound=int | None)

#: Characters of a text in an address.
_MOST_CHARACTERS = 1_000
#: Digits of a number: no offset has more.
_MOST_DIGITS = 19
#: Rows of a page of a table, and the most that may be asked for.
_ROWS, _MOST_ROWS = 25, 100
#: Rows that one may skip, and those of tables whose rows are read anew each time.
_MOST_SKIPPED, _MOST_READ_OVER = 10_000_000, 10_000


class WrongParameter(InvalidArgument):
    """A parameter has a wrong value: a page with a field of that name shows it there."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class Parameters:
    """The part of an address behind the question mark, and the names in its path. Immutable."""

    def __init__(self, query: Sequence[tuple[str, str]], path: Mapping[str, str] | None = None) -> None:
        self._values = dict(query)
        self._path = dict(path or {})
        if len(self._values) != len(query):
            names = [name for name, _ in query]
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidArgument(f"the parameter {_shown(twice)} is given twice: give it once")

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters as they were given, for addresses of other parts of the same table."""
        return dict(self._values)

    def without(self, name: str) -> Parameters:
        """Return the others."""
        return Parameters([each for each in self._values.items() if each[0] != name], self._path)

    def name(self, part: str) -> str:
        """Return a name in the path."""
        return self._path[part]

    @property
    def names(self) -> Mapping[str, str]:
        """The names in the path."""
        return dict(self._path)

    def given(self, name: str) -> str | None:
        """Return a text as it was given, with the line ends of this machine; None if it was not."""
        value = self._values.get(name)
        return None if value is None else value.replace("\r\n", "\n")

    def text(self, name: str, default: str = "", *, most: int = _MOST_CHARACTERS) -> str:
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
        if not re.fullmatch(rf"-?[0-9]{{1,{_MOST_DIGITS}}}", value):
            raise WrongParameter(name, f"the parameter {name} is {_shown(value)}: it must be a whole number")
        found = int(value)
        if not low <= found <= high:
            raise WrongParameter(name, f"the parameter {name} is {found}: it must be {low} to {high}")
        return found

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """Return one of some words. Raises `InvalidArgument`."""
        value = self._values.get(name, "").strip() or default
        if value not in choices:
            text = f"the parameter {name} is {_shown(value)}: it must be one of {', '.join(choices)}"
            raise WrongParameter(name, text)
        return value

    def flag(self, name: str) -> bool:
        """Return whether something is switched on. Raises `InvalidArgument`."""
        return self.choice(name, ("0", "1"), "0") == "1"

    def rows(self, most_skipped: int = _MOST_SKIPPED) -> tuple[int, int]:
        """Return how many rows of a table are skipped, and how many follow. Raises `InvalidArgument`."""
        return self.number("skip", 0, 0, most_skipped), self.number("rows", _ROWS, 1, _MOST_ROWS)

    def part_of(self, rows: Sequence[Row]) -> tuple[Sequence[Row], dict[str, int]]:
        """Return the rows of a table that are asked for, and their place in it. Raises `InvalidArgument`."""
        skip, count = self.rows()
        shown = rows[skip : skip + count]
        return shown, {"skipped": min(skip, len(rows)), "shown": len(shown), "total": len(rows), "rows": count}

    def part_from(self, rows: Iterable[Row]) -> tuple[Sequence[Row], dict[str, int | None]]:
        """Do as `part_of` does for rows that are read one after the other; the total is None if there are more."""
        skip, count = self.rows(_MOST_READ_OVER)
        found = list(islice(rows, skip, skip + count + 1))
        shown = found[:count]
        total = None if len(found) > count else skip + len(shown)
        return shown, {"skipped": skip, "shown": len(shown), "total": total, "rows": count}


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


# ---- Addresses --------------------------------------------------------------------------------------


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
