"""Values as people write and read them: counts, durations, sizes, paths, quotes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from minimq_common.errors import InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path


def quoted(value: object) -> str:
    """Return a value in quotes, for an error; at most 60 characters of it."""
    text = str(value)
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


def count_of(count: int, thing: str, things: str = "") -> str:
    """Return "1 message", "2,000 messages"."""
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"


def listed(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def kind_of(value: object) -> str:
    """Return "a list", "an int", or "None" for None."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


#: A line end of a Secret, or the quotes of a value in an environment file: the path would be that of another file.
_NOT_IN_PATHS = re.compile(r"[\x00-\x1f\x7f-\x9f\"]|^'|'\Z")


def check_path(what: str, path: str | os.PathLike[str]) -> None:
    """Raise `InvalidArgument` if a path has control characters or quotes; the error names `what`, not the path."""
    if found := _NOT_IN_PATHS.search(os.fspath(path)):
        raise InvalidArgument(
            f"{what} contains the character {found[0]!r}: a path must not contain line ends, other control characters "
            "or quotes; remove it where the value comes from, such as a Secret or an environment file"
        )


_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_BYTES = {"": 1, "b": 1} | {
    f"{letter}{ending}": base**power
    for power, letter in enumerate("kmgt", 1)
    for ending, base in (("b", 1000), ("ib", 1024))
}
_PART = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?(ms|[smhdw])", re.ASCII)
_DURATION = re.compile(rf"(?:{_PART.pattern} ?)+", re.ASCII)
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?([a-z]*)", re.ASCII | re.IGNORECASE)


def seconds_of(text: str) -> float | None:
    """Parse a duration with units, such as "3d", "1h30m" or "500ms", to seconds; None if it is not one."""
    if not _DURATION.fullmatch(text.strip()):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))


def seconds_text(seconds: float) -> str:
    """Format a duration exactly, in the largest unit that divides it, for `seconds_of`: "3d", "90m", "500ms"."""
    ms = round(seconds * 1000)
    for unit in ("d", "h", "m", "s"):
        if ms and ms % round(_SECONDS[unit] * 1000) == 0:
            return f"{ms // round(_SECONDS[unit] * 1000)}{unit}"
    return f"{ms}ms" if ms else "0"


def bytes_of(text: str) -> int | None:
    """Parse a size such as "10GB" (powers of 1000) or "64MiB" (powers of 1024) to bytes; None if it is not one."""
    match = _SIZE.fullmatch(text.strip())
    factor = _BYTES.get(match[2].lower()) if match is not None else None
    return None if match is None or factor is None else round(Decimal(match[1]) * factor)


def size_text(size: int) -> str:
    """Format a size exactly, in the largest unit that divides it, for `bytes_of`: "10MiB", "1500B"."""
    for ending, base in (("iB", 1024), ("B", 1000)):
        for power, letter in ((4, "T"), (3, "G"), (2, "M"), (1, "K" if base == 1024 else "k")):
            if size and size % base**power == 0:
                return f"{size // base**power}{letter}{ending}"
    return f"{size}B"


class Unit(NamedTuple):
    """The unit of an option whose value is a number, or text with a unit."""

    name: str
    example: str
    metavar: str
    #: Parses text with a unit; None if it has no such unit.
    read: Callable[[str], float | None]
    write: Callable[[Any], str]


SECONDS: Final = Unit("seconds", "3d", "TIME", seconds_of, seconds_text)
BYTES: Final = Unit("bytes", "10GB", "SIZE", bytes_of, lambda size: size_text(size) if size else "0")


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with "~" replaced by the user's home. Raises `InvalidArgument` if the user has none."""
    from pathlib import Path  # imported here because it loads much that a producer does not need

    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InvalidArgument(
            f"{os.fspath(path)}: '~' is the home directory, which this user does not have: set HOME, or give an "
            "absolute path"
        ) from None
