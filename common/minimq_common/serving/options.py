"""Options as frozen dataclasses, from which the command line and the environment variables are derived.

An option is one field: its default, a sentence with the unit, and its limits stand in one place.

    @dataclass(frozen=True, slots=True)
    class NameServerOptions:
        listen: str = option("127.0.0.1:9876", "Address to serve at.", metavar="HOST:PORT")
        expire_after_s: float = option(120.0, "Silence after which a broker is removed.", minimum=1)

        def __post_init__(self) -> None:
            check_limits(self)

    @click.command()
    @from_command_line(NameServerOptions, env_prefix="MINIMQ_NAMESERVER")
    def main(options: NameServerOptions) -> None: ...

The flag is the name of the field: `--listen`, and `--expire-after` for `expire_after_s`, whose unit stands in the
help instead; text such as `2m` is taken as well. The variable is the prefix and the flag:
`MINIMQ_NAMESERVER_EXPIRE_AFTER`. The key in a configuration file, which `--config` names, is the flag without the
dashes in front: `expire-after = 60`. A flag wins over a variable, and both win over the file.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import click
import msgspec
from click.core import ParameterSource

from minimq_common.errors import InvalidArgument
from minimq_common.words import BYTES, SECONDS, Unit

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True, slots=True)
class _About:
    """The metadata of an option's field."""

    sentence: str
    metavar: str | None
    flag: str | None
    minimum: float | None
    maximum: float | None


_KEY = "minimq-option"


def option(
    default: T,
    sentence: str,
    *,
    metavar: str | None = None,
    flag: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
) -> T:
    """Declare a field of an options class."""
    about = _About(sentence, metavar, flag, minimum, maximum)
    # At run time a field; its declared type is that of the default, which is what an instance will hold.
    return dataclasses.field(default=default, metadata={_KEY: about})


def check_limits(options: object) -> None:
    """Check every number of an options instance; for its `__post_init__`."""
    for field in dataclasses.fields(cast(Any, options)):
        about = field.metadata.get(_KEY)
        value = getattr(options, field.name)
        if about is None or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        said = f"{_flag(field)} is {value}"
        if not math.isfinite(value):
            raise InvalidArgument(f"{said}: it must be a finite number")
        if about.minimum is not None and value < about.minimum:
            raise InvalidArgument(f"{said}: it must be at least {about.minimum}")
        if about.maximum is not None and value > about.maximum:
            raise InvalidArgument(f"{said}: it must be at most {about.maximum}")


def from_command_line(
    options_class: type[T], *, env_prefix: str
) -> Callable[[Callable[Concatenate[T, P], R]], Callable[P, R]]:
    """Return a decorator that gives a click command the flags of an options class.

    The command is called with the instance as its first argument. An `InvalidArgument` from constructing it is
    wrong usage: click prints the text and exits with status 2.
    """
    fields = [field for field in dataclasses.fields(cast(Any, options_class)) if _KEY in field.metadata]

    def decorate(function: Callable[Concatenate[T, P], R]) -> Callable[P, R]:
        @functools.wraps(function)
        def command(*args: P.args, **kwargs: P.kwargs) -> R:
            values = {field.name: kwargs.pop(field.name) for field in fields}
            try:
                options = options_class(**values)
            except InvalidArgument as error:
                raise click.UsageError(_with_sources(fields, values, error.message, env_prefix)) from None
            return function(options, *args, **kwargs)

        hints = get_type_hints(options_class)
        decorated: Callable[P, R] = command
        for field in reversed(fields):  # click lists them in the order of the decorators, the last applied first
            decorated = _click_option(field, hints[field.name], env_prefix)(decorated)
        return _config_option(fields, hints, env_prefix)(_example_option(fields)(decorated))

    return decorate


def _config_option(
    fields: list[dataclasses.Field[Any]], hints: dict[str, Any], env_prefix: str
) -> Callable[[Decorated], Decorated]:
    def read(context: click.Context, _: click.Parameter, path: Path | None) -> None:
        if path is None:
            return
        try:
            units = {_key(field): unit for field in fields if (unit := _unit(field.name)) is not None}
            values = read_config(path, {_key(field): hints[field.name] for field in fields}, units)
        except InvalidArgument as error:
            raise click.UsageError(error.message, context) from None
        names = {_key(field): field.name for field in fields}
        context.default_map = {names[key]: value for key, value in values.items()}
        context.meta[_KEY] = path

    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        default=None,
        metavar="FILE",
        help="File in TOML with options: its keys are the flags without the dashes in front. Flags and variables win.",
        envvar=f"{env_prefix}_CONFIG",
        show_envvar=True,
        is_eager=True,
        expose_value=False,
        callback=read,
    )


def _example_option(fields: list[dataclasses.Field[Any]]) -> Callable[[Decorated], Decorated]:
    def show(context: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted:
            command = context.find_root().info_name or "this command"
            options = {_key(field): (_sentence(field), field.default) for field in fields}
            click.echo("\n".join(example_config(command, options)))
            context.exit()

    return click.option(
        "--example-config",
        is_flag=True,
        help="Print a configuration file with every option at its default, and exit.",
        is_eager=True,
        expose_value=False,
        callback=show,
    )


def _with_sources(
    fields: list[dataclasses.Field[Any]], values: Mapping[str, object], message: str, env_prefix: str
) -> str:
    context = click.get_current_context()
    source = context.get_parameter_source
    named = [field for field in fields if f"{_flag(field)} " in message]
    if not named and (named := [field for field in fields if repr(values[field.name]) in message][:1]):
        message = f"{_flag(named[0])}: {message}"
    keys = [_key(field) for field in named or fields if source(field.name) == ParameterSource.DEFAULT_MAP]
    variables = [_variable(field, env_prefix) for field in named if source(field.name) == ParameterSource.ENVIRONMENT]
    said = [f"{', '.join(keys)} in {context.meta[_KEY]}"] if keys else []
    return " ".join([message, *(f"({each})" for each in (*said, *variables))])


def _key(field: dataclasses.Field[Any]) -> str:
    return _flag(field).removeprefix("--")


def _sentence(field: dataclasses.Field[Any]) -> str:
    unit = {"SECONDS": " In seconds.", "MILLISECONDS": " In milliseconds."}
    about: _About = field.metadata[_KEY]
    return about.sentence + unit.get(_metavar(field.name) or "", "")


def _variable(field: dataclasses.Field[Any], env_prefix: str) -> str:
    return f"{env_prefix}_{_key(field).replace('-', '_').upper()}"


def _flag(field: dataclasses.Field[Any]) -> str:
    about: _About = field.metadata[_KEY]
    return about.flag or "--" + field.name.removesuffix("_s").replace("_", "-")


def _click_option(
    field: dataclasses.Field[Any], annotation: object, env_prefix: str
) -> Callable[[Decorated], Decorated]:
    about: _About = field.metadata[_KEY]
    flag = _flag(field)
    kind = without_none(annotation)
    default = field.default
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    return click.option(
        f"{flag}/--no-{flag[2:]}" if kind is bool else flag,
        field.name,
        type=_click_type(kind, _unit(field.name)),
        default=default,
        help=about.sentence,
        metavar=about.metavar or _metavar(field.name),
        envvar=_variable(field, env_prefix),
        show_envvar=True,
        show_default=default not in (None, ""),
    )


def _unit(name: str) -> Unit | None:
    if name.endswith("_s"):
        return SECONDS
    return BYTES if name.endswith("_bytes") else None


def _click_type(kind: object, unit: Unit | None) -> click.ParamType[Any] | type[Any]:
    if unit is not None and kind in (int, float):
        return _Quantity(cast(type[Any], kind), unit)
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if get_origin(kind) is tuple and get_args(kind)[1:] == (...,):
        return _CommaSeparated(get_args(kind)[0])
    if kind is Path:
        return click.Path(path_type=Path)
    if kind in (str, int, float, bool):
        return cast(type[Any], kind)
    raise TypeError(f"no command-line type is known for {kind}")


def _metavar(name: str) -> str | None:
    if name.endswith("_s"):
        return "SECONDS"
    if name.endswith("_ms"):
        return "MILLISECONDS"
    if name.endswith("_bytes"):
        return "BYTES"
    return None


class _Quantity(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    """A number, or text with a unit such as 3d or 10GB."""

    def __init__(self, kind: type[Any], unit: Unit) -> None:
        self._number = click.types.convert_type(kind)
        self._unit = unit
        self.name = self._number.name

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = self._unit.read(value) if isinstance(value, str) else None
        if number is not None:
            return number
        try:
            return self._number.convert(value, param, ctx)
        except click.BadParameter:
            self.fail(
                f"{value!r} is neither a number of {self._unit.name} nor, for example, {self._unit.example}.",
                param,
                ctx,
            )


class _CommaSeparated(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    name = "list"

    def __init__(self, item: type[Any]) -> None:
        self._item = click.types.convert_type(item)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        parts = (part.strip() for part in str(value).split(","))
        return tuple(self._item.convert(part, param, ctx) for part in parts if part)


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
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(json.dumps, get_args(kind)))
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
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps("" if value is None else str(value), ensure_ascii=False)
