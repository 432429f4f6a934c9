"""Options as frozen dataclasses, from which flags, environment variables and configuration files are derived.

An option is one field, with its default, its limits, and two short sentences: what it is, and when to change it. The
first field of a section of the help names the section.

    @dataclass(frozen=True, slots=True)
    class NameServerOptions:
        listen: str = option("127.0.0.1:9876", "Address to serve at.", metavar="HOST:PORT", section="Brokers")
        expire_after_s: float = option(120.0, "Silence after which a broker is removed.", minimum=1)

        def __post_init__(self) -> None:
            check_limits(self)

    @click.command()
    @from_command_line(NameServerOptions, env_prefix="MINIMQ_NAMESERVER")
    def main(options: NameServerOptions) -> None: ...

The flag is the name of the field without its unit, which the help shows: `--listen`, and `--expire-after` for
`expire_after_s`. Values may have a unit, such as `2m`, and defaults are shown so. The variable is the prefix and the
flag: `MINIMQ_NAMESERVER_EXPIRE_AFTER`. The key in a configuration file (`--config FILE`) is the flag without the
leading dashes: `expire-after = 60`. A flag overrides a variable, and both override the file.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
import json
import math
import re
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import click
import msgspec
from click.core import ParameterSource

from minimq_common.errors import InvalidArgument
from minimq_common.files.text_file import read_text_file
from minimq_common.names import check_named
from minimq_common.text_units import BYTES, SECONDS, Unit, check_path

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


_KEY = "minimq-option"
_UNITS = {"_s": SECONDS, "_bytes": BYTES}
_WORDS: dict[object, str] = {**{str: "a string", int: "a whole number", float: "a number", Path: "a string"}}


def option(
    default: T,
    text: str,
    *,
    metavar: str | None = None,
    flag: str | None = None,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    section: str = "",
) -> T:
    about = {"text": text, "metavar": metavar, "flag": flag, "minimum": minimum, "maximum": maximum, "section": section}
    # Returns a dataclass field, but is typed like the default: that is what an instance will contain.
    return dataclasses.field(default=default, metadata={_KEY: about})


class _Option:
    """A field of an options class, and the flag, variable and key derived from it."""

    def __init__(
        self, field: dataclasses.Field[Any], annotation: object = None, env_prefix: str = "", section: str = ""
    ) -> None:
        self.name, self.default = field.name, field.default
        self.about: Mapping[str, Any] = field.metadata[_KEY]
        self.flag = self.about["flag"] or "--" + field.name.removesuffix("_s").replace("_", "-")
        self.key = self.flag.removeprefix("--")
        self.variable = f"{env_prefix}_{self.key.replace('-', '_').upper()}"
        self.section = section
        self.kind: Any = without_none(annotation)
        self.may_be_none = self.kind is not annotation
        self.unit = next((unit for ending, unit in _UNITS.items() if field.name.endswith(ending)), None)
        self.metavar = self.about["metavar"] or (self.unit and self.unit.metavar)
        #: The default as users write it: "3d".
        self.shown_default = self.default if self.unit is None else self.unit.write(self.default)

    def of_file(self, value: object) -> Any:
        """Convert a value from a configuration file. Raises `InvalidArgument`; the text says what is valid."""
        if value == "" and self.may_be_none:
            return None
        number = self.unit.read(value) if self.unit is not None and isinstance(value, str) else None
        try:
            return msgspec.convert(value if number is None else number, self.kind, dec_hook=_path)
        except msgspec.ValidationError:
            said = json.dumps(value, default=str, ensure_ascii=False)
            unit = "" if self.unit is None else f" of {self.unit.name}, or text such as {self.unit.example!r}"
            raise InvalidArgument(f"{self.key} is {said}: it has to be {_wanted(self.kind)}{unit}") from None

    def click_option(self) -> Callable[[Decorated], Decorated]:
        default = ",".join(map(str, self.default)) if isinstance(self.default, tuple) else self.shown_default
        return click.option(
            self.flag,
            self.name,
            cls=_ServerOption,
            section=self.section,
            type=self._click_type(),
            default=default,
            help=self.about["text"],
            metavar=self.metavar,
            envvar=self.variable,
        )

    def _click_type(self) -> click.ParamType[Any] | type[Any]:
        kind = self.kind
        if self.unit is not None and kind in (int, float):
            return _Quantity(kind, self.unit)
        if get_origin(kind) is Literal:
            return click.Choice(get_args(kind))
        if get_origin(kind) is tuple and get_args(kind)[1:] == (...,):
            return _CommaSeparated(get_args(kind)[0])
        if kind is Path:
            return click.Path(path_type=Path)
        if kind in (str, int, float):
            return cast(type[Any], kind)
        raise TypeError(f"no command-line type is known for {kind}")

    def example(self) -> Iterator[str]:
        """Yield its lines for an example configuration file: the default, commented out."""
        yield ""
        yield from textwrap.wrap(self.about["text"], 118, initial_indent="# ", subsequent_indent="# ")
        yield f"#{self.key} = {_written(0 if self.shown_default == '0' else self.shown_default)}"


def check_limits(options: object) -> None:
    """Check all paths, and the limits of all numbers. Call it in `__post_init__`. Raises `InvalidArgument`."""
    for field in dataclasses.fields(cast(Any, options)):
        value = getattr(options, field.name)
        if _KEY in field.metadata and isinstance(value, Path):
            check_path(_Option(field).flag, value)
        if _KEY not in field.metadata or not isinstance(value, int | float):
            continue
        known = _Option(field)
        least, most = known.about["minimum"], known.about["maximum"]
        said = f"{known.flag} is {value}: it must be"
        if not math.isfinite(value):
            raise InvalidArgument(f"{said} a finite number")
        if not least <= value <= most:
            raise InvalidArgument(f"{said} {f'at least {least}' if value < least else f'at most {most}'}")


def from_command_line(
    options_class: type[T], *, env_prefix: str
) -> Callable[[Callable[Concatenate[T, P], R]], Callable[P, R]]:
    """Return a decorator that adds the flags of an options class to a click command."""
    options = _options_of(options_class, env_prefix)

    def decorate(function: Callable[Concatenate[T, P], R]) -> Callable[P, R]:
        @functools.wraps(function)
        def command(*args: P.args, **kwargs: P.kwargs) -> R:
            values = {each.name: kwargs.pop(each.name) for each in options}
            try:
                made = options_class(**values)
            except InvalidArgument as error:
                raise click.UsageError(_with_sources(options, error.message)) from None
            return function(made, *args, **kwargs)

        decorated: Callable[P, R] = command
        for each in reversed(options):  # click lists the decorator first that is applied last
            decorated = each.click_option()(decorated)
        return _config_option(options_class, env_prefix)(_example_option(options)(decorated))

    return decorate


class _ServerOption(click.Option):
    def __init__(self, *args: Any, section: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.section = section


class ServerGroup(click.Group):
    """The command of a server: its help lists the options in the sections of the options class, and all others last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, and the commands."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        options.sort(key=lambda each: not isinstance(each, _ServerOption))
        for title, listed in itertools.groupby(options, lambda each: getattr(each, "section", "Other options")):
            with formatter.section(title):
                formatter.write_dl([_in_short(each, ctx) for each in listed])
        self.format_commands(ctx, formatter)


def _in_short(option: click.Option, context: click.Context) -> tuple[str, str]:
    record = option.get_help_record(context)
    assert record is not None  # none is hidden
    default = option.get_default(context)
    return record[0], f"{option.help} [{default}]" if default not in (None, "", False) else option.help or ""


def _options_of(options_class: type[Any], env_prefix: str = "") -> list[_Option]:
    hints = get_type_hints(options_class)
    section, options = "", []
    for field in dataclasses.fields(options_class):
        if _KEY in field.metadata:
            section = field.metadata[_KEY]["section"] or section
            options.append(_Option(field, hints[field.name], env_prefix, section))
    order = [each.section for each in options]
    return sorted(options, key=lambda each: order.index(each.section))  # fields of a subclass may name a former section


def _config_option(options_class: type[Any], env_prefix: str) -> Callable[[Decorated], Decorated]:
    def read(context: click.Context, _: click.Parameter, path: Path | None) -> None:
        if path is None:
            return
        try:
            context.default_map = read_config(path, options_class)
        except InvalidArgument as error:
            raise click.UsageError(error.message, context) from None
        context.meta[_KEY] = path

    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        default=None,
        metavar="FILE",
        help="File in TOML: its keys are the flags without the dashes.",
        envvar=f"{env_prefix}_CONFIG",
        is_eager=True,
        expose_value=False,
        callback=read,
    )


def _example_option(options: list[_Option]) -> Callable[[Decorated], Decorated]:
    def show(context: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted:
            command = context.find_root().info_name or "this command"
            advice = "remove the # before an option to set it. Flags and variables win over it."
            click.echo(f"# Configuration of {command}: {advice}")
            click.echo("\n".join(line for each in options for line in each.example()))
            context.exit()

    return click.option(
        "--example-config",
        is_flag=True,
        help="Print a file for --config with all defaults, and exit.",
        is_eager=True,
        expose_value=False,
        callback=show,
    )


def _with_sources(options: list[_Option], message: str) -> str:
    context = click.get_current_context()
    source = context.get_parameter_source
    named = [each for each in options if re.search(rf"{each.flag}[ :]", message)]
    keys = [each.key for each in named or options if source(each.name) == ParameterSource.DEFAULT_MAP]
    variables = [each.variable for each in named if source(each.name) == ParameterSource.ENVIRONMENT]
    said = [f"{', '.join(keys)} in {context.meta[_KEY]}"] if keys else []
    return " ".join([message, *(f"({each})" for each in (*said, *variables))])


class _Quantity(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
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


def read_config(path: Path, options_class: type[Any]) -> dict[str, Any]:
    """Return the values in a configuration file, by field name. Raises `InvalidArgument`."""
    import tomllib  # imported here because not every server has a file

    try:
        table = tomllib.loads(read_text_file(path).decode())
    except (ValueError, RecursionError) as error:  # invalid TOML or UTF-8, or lists nested too deeply
        raise InvalidArgument(f"{path} is not a TOML file: {error}") from None
    options = {each.key: each for each in _options_of(options_class)}
    values = {}
    for key, value in table.items():
        if key not in options:
            raise InvalidArgument(f"{path}: there is no option {key!r}{_nearest(key, options)}")
        values[options[key].name] = check_named(str(path), options[key].of_file, value)
    return values


def without_none(annotation: object) -> object:
    """Return `T` for `T | None`, and any other annotation unchanged."""
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


def _nearest(key: str, known: Iterable[str]) -> str:
    written = key.replace("_", "-").lower()
    # Prefer an option that the key extends, mostly with a unit: `expire-after` for `expire-after-s`.
    found = sorted((name for name in known if written.startswith(f"{name}-")), key=len, reverse=True)
    found = found or difflib.get_close_matches(written, known, 1)
    return f": did you mean {found[0]!r}?" if found else ""


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_written, value)) + "]"
    if isinstance(value, int | float):
        return json.dumps(value)
    return json.dumps("" if value is None else str(value), ensure_ascii=False)
