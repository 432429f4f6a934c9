"""Configuration files in TOML: what they may say follows from the options, and whatever else they say is an error."""

from __future__ import annotations

import difflib
import json
import textwrap
import types
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from minimq_common.errors import InvalidArgument
from minimq_common.quantities import Unit

#: Options that are numbers without a unit.
NO_UNITS: Mapping[str, Unit] = types.MappingProxyType({})

_WORDS: Mapping[object, str] = types.MappingProxyType(
    {str: "a string", bool: "true or false", int: "a whole number", float: "a number", Path: "a string"}
)


def read_config(path: Path, kinds: Mapping[str, object], units: Mapping[str, Unit] = NO_UNITS) -> dict[str, Any]:
    """Return what a file sets, by key, as values of the options."""
    import tomllib  # for who has such a file

    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidArgument(f"cannot read the configuration file {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # of TOML, or of UTF-8; or lists in lists without end
        raise InvalidArgument(f"{path} is not a TOML file: {error}") from None
    values = {}
    for key, value in table.items():
        if key not in kinds:
            raise InvalidArgument(f"{path}: there is no option {key!r}{_nearest(key, kinds)}")
        kind = without_none(kinds[key])
        try:
            values[key] = (
                None
                if value == "" and kind is not kinds[key]
                else msgspec.convert(_without_unit(value, units.get(key)), kind, dec_hook=_path)
            )
        except msgspec.ValidationError:
            said = json.dumps(value, default=str, ensure_ascii=False)
            unit = f" of {units[key].name}, or text such as {units[key].example!r}" if key in units else ""
            raise InvalidArgument(f"{path}: {key} is {said}: it has to be {_wanted(kind)}{unit}") from None
    return values


def _without_unit(value: object, unit: Unit | None) -> object:
    number = unit.read(value) if unit is not None and isinstance(value, str) else None
    return value if number is None else number


def without_none(annotation: object) -> object:
    """Return the type that a value has which is not None."""
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [arg for arg in get_args(annotation) if arg is not types.NoneType]
        if len(rest) == 1:
            return rest[0]
    return annotation


def _path(kind: type, value: object) -> Path:
    if kind is not Path or not isinstance(value, str):
        raise TypeError
    return Path(value)


def _wanted(kind: Any) -> str:
    if get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        members = get_args(kind) if get_origin(kind) is Literal else [member.value for member in kind]
        return "one of " + ", ".join(map(json.dumps, members))
    if get_origin(kind) is tuple:
        return f"a list in brackets, and each item {_WORDS[get_args(kind)[0]]}"
    return _WORDS[kind]


def _nearest(key: str, known: Mapping[str, object]) -> str:
    written = key.replace("_", "-").lower()
    # A key with something behind it, which is mostly its unit, is nearer than one that has as many letters in common.
    found = sorted((name for name in known if written.startswith(f"{name}-")), key=len, reverse=True)
    found = found or difflib.get_close_matches(written, known, 1)
    return f": did you mean {found[0]!r}?" if found else ""


def example_config(command: str, options: Mapping[str, tuple[str, object]]) -> Iterator[str]:
    """Yield the lines of a file that has every option of a command at its default, each commented out."""
    yield f"# Configuration of {command}: remove the # before an option to set it. Flags and variables win over it."
    for key, (sentence, default) in options.items():
        yield ""
        yield from textwrap.wrap(sentence, 118, initial_indent="# ", subsequent_indent="# ")
        yield f"#{key} = {_written(default)}"


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_written, value)) + "]"
    if isinstance(value, Enum):
        return _written(value.value)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps("" if value is None else str(value), ensure_ascii=False)
