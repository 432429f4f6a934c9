"""Tables of options with their defaults, and errors about unknown options."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from pyspark_minimq.errors import MinimqSparkError

T = TypeVar("T")

#: Properties that Spark adds to the options of a table, and its prefix for options.
_TABLE_PROPERTIES = frozenset(
    {"provider", "owner", "comment", "collation", "location", "external", "is_managed_location", "path"}
)
_OPTION_PREFIX = "option."
#: Options of other formats, and their equivalent here.
_ELSEWHERE = {"path": "topic", "kafka.bootstrap.servers": "nameserver"}


class Mode(Enum):
    BATCH = "batch"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    #: Default for `spark.read` or `df.write`, as a user would write it; "" for no default, None if the option is not
    #: allowed there.
    batch: str | None = ""
    #: The same for `spark.readStream` or `df.writeStream`.
    stream: str | None = ""

    def default(self, mode: Mode) -> str | None:
        """Return the default in a mode; None if the option is not allowed there."""
        return self.batch if mode is Mode.BATCH else self.stream


class OptionTable:
    """The options of reads, or those of writes."""

    def __init__(self, options: Sequence[Option], batch: str, stream: str) -> None:
        self._options = options
        self._ways = {Mode.BATCH: batch, Mode.STREAM: stream}
        self._by_key = {option.name.lower(): option for option in options}

    def values(self, given: Mapping[str, str], mode: Mode) -> Values:
        """Return the values of the options of a mode. Raises `MinimqSparkError` for unknown options."""
        known = {key: option for key, option in self._by_key.items() if option.default(mode) is not None}
        elsewhere = [option.name for key, option in self._by_key.items() if key not in known and _has(given, key)]
        if elsewhere:
            other = Mode.STREAM if mode is Mode.BATCH else Mode.BATCH
            raise MinimqSparkError(
                f"option {listed(elsewhere)} is for {self._ways[other]}: {self._ways[mode]} has "
                f"{_names_of(known.values())}"
            )
        self._reject_unknown(given, known.values(), self._ways[mode])
        return Values(given, {key: option.default(mode) or "" for key, option in known.items()})

    def reject_unknown(self, given: Mapping[str, str], what: str) -> None:
        """Raise `MinimqSparkError` for an option that is unknown in both modes."""
        self._reject_unknown(given, self._options, what)

    def mode_of(self, given: Mapping[str, str]) -> Mode | None:
        """Return the mode that the given options imply; None if they are allowed in both."""
        options = [self._by_key[name.lower()] for name in given if name.lower() in self._by_key]
        if any(option.batch is None for option in options):
            return Mode.STREAM
        return Mode.BATCH if any(option.stream is None for option in options) else None

    @staticmethod
    def _reject_unknown(given: Iterable[str], known: Iterable[Option], what: str) -> None:
        names = {option.name.lower(): option.name for option in known}
        unknown = sorted(name for name in given if name.lower() not in names)
        if unknown:
            keys = {**{name: name for name in names}, **_ELSEWHERE}
            nearest = dict.fromkeys(
                names[keys[key]] for name in unknown for key in difflib.get_close_matches(name.lower(), keys, 1)
            )
            hint = f"did you mean {listed(nearest)}? " if nearest else ""
            raise MinimqSparkError(f"unknown option {listed(unknown)}: {hint}{what} has {', '.join(names.values())}")


class Values:
    """The given options, and the defaults of the others."""

    def __init__(self, given: Mapping[str, str], defaults: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._defaults = defaults

    def is_given(self, name: str) -> bool:
        return bool(self._given.get(name.lower(), "").strip())

    def get(self, name: str, parse: Callable[[str, str], T]) -> T | None:
        """Return the parsed value of an option; None if it is not given and has no default in this mode."""
        text = self._given.get(name.lower(), "").strip() or self._defaults.get(name.lower())
        return parse(name, text) if text else None

    def required(self, name: str, parse: Callable[[str, str], T]) -> T:
        value = self.get(name, parse)
        assert value is not None
        return value


def of_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return only the options of a table that is being created; None if these are not the options of a table."""
    named = {name.lower(): value for name, value in given.items()}
    if "provider" not in named:
        return None
    options = {name.removeprefix(_OPTION_PREFIX): value for name, value in named.items()}
    return {name: value for name, value in options.items() if name not in _TABLE_PROPERTIES}


def _has(given: Iterable[str], key: str) -> bool:
    return any(name.lower() == key for name in given)


def _names_of(options: Iterable[Option]) -> str:
    return ", ".join(option.name for option in options)


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
