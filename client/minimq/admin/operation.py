"""Declares each operation once, as a method of `Admin`; all other interfaces are derived from it.

The CLI, the console's forms, its JSON API and `aio.Admin` take the name, type and default of a parameter from the
signature, and its help from the section `Args` of the docstring. `Annotated[..., Param(...)]` adds what a signature
cannot express. The CLI and forms pass values as text: where these differ from Python's, `Param(help=...)` describes
them, and the docstring describes the values of Python.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

from minimq.admin.views import Plan, View
from minimq_common.errors import InvalidArgument
from minimq_common.text_units import quoted

if TYPE_CHECKING:
    from minimq.admin.master_client import MasterClient

P = ParamSpec("P")
T = TypeVar("T")
#: The result type of the asyncio variant.
A = TypeVar("A")

#: The arguments of a call as attributes, defaults included.
Arguments = SimpleNamespace
_OPERATIONS, _COLLECT = "__operations__", "__collect__"
#: Used if a `Param` sets no bounds.
_INT64_BOUNDS = (-(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """Facts about a parameter that a signature does not have."""

    #: The short option of the command, such as "-f".
    letter: str = ""
    #: The option of the command; by default the name of the parameter.
    flag: str = ""
    metavar: str = ""
    #: Parses a text. Takes the name of the option or field, for errors, and the text. Raises `InvalidArgument`.
    read: Callable[[str, str], object] | None = None
    #: The values by the text that selects each.
    choices: Mapping[str, object] = field(default_factory=dict)
    low: float | None = None
    high: float | None = None
    #: What shell completion offers: "topics", "groups" or "brokers".
    complete: str = ""
    #: The default in commands and forms, as text, if it differs from the method's.
    default: str | None = None
    #: Positional in the command although it has a default; an option although it is required.
    is_argument: bool = False
    is_option: bool = False
    #: Required in commands and forms although it has a default; absent from them.
    is_required: bool = False
    is_hidden: bool = False
    #: A callback that receives errors; views find these in `given.collected`.
    is_collected: bool = False
    #: The help in commands and forms, where values are text: in place of that of the docstring.
    help: str = ""


HIDDEN = Param(is_hidden=True)


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    #: bool, int, float or str.
    kind: type
    is_many: bool
    #: Positional in the command.
    is_argument: bool
    #: `inspect.Parameter.empty` if there is none.
    default: Any
    help: str
    about: Param
    #: A field of a `TypedDict`, omitted from the call if it is None.
    is_keyword: bool = False

    @property
    def is_required(self) -> bool:
        """True if every interface must give a value."""
        return self.default is inspect.Parameter.empty or self.about.is_required

    @property
    def flag(self) -> str:
        return self.about.flag or f"--{self.name.replace('_', '-')}"

    @property
    def label(self) -> str:
        """The argument or option as the help of the command names it."""
        return (self.about.metavar or self.name.upper()) if self.is_argument else self.flag

    @property
    def key(self) -> str:
        """The name in commands and forms, taken from the option."""
        return self.name if self.is_argument else self.flag.lstrip("-").replace("-", "_")

    def read(self, what: str, given: Any) -> Any:
        """Convert text to a value; numbers and switches pass unchanged. Raises `InvalidArgument`."""
        about = self.about
        if not isinstance(given, str) and (about.read is None or self.kind in (int, float)):
            return given
        text = str(given)
        if about.read is not None:
            return about.read(what, text)
        if about.choices:
            if text not in about.choices:
                raise InvalidArgument(f"{what} is {quoted(text)}: it must be one of {', '.join(about.choices)}")
            return about.choices[text]
        if self.kind in (int, float):
            return self._number(what, text)
        return text

    def _number(self, what: str, text: str) -> float:
        lowest, highest = _INT64_BOUNDS if self.kind is int else (-math.inf, math.inf)
        low = lowest if self.about.low is None else self.about.low
        high = highest if self.about.high is None else self.about.high
        try:
            value: float = self.kind(text)
            if self.kind is float and math.isnan(value):
                raise ValueError
        except ValueError:
            wanted = "a whole number" if self.kind is int else "a number"
            raise InvalidArgument(f"{what} is {quoted(text)}: it must be {wanted}") from None
        if not low <= value <= high:
            bounds = f"{low} to {high}"
            if self.about.high is None:
                bounds = f"at least {low}" if value < low else f"at most {high}"
            raise InvalidArgument(f"{what} is {text.strip()[:60]}: it must be {bounds}")
        return value


def read(
    parameters: Iterable[Parameter], source: Mapping[str, Any], called: Callable[[Parameter], str]
) -> dict[str, Any]:
    """Convert user input to argument values, by parameter name. Raises `InvalidArgument`.

    Args:
        parameters: those that the interface offers; those absent from `source` are omitted.
        source: the input by parameter name: texts, numbers, switches, or lists of these.
        called: returns the name of a parameter for error messages.
    """

    def value(parameter: Parameter, given: Any) -> Any:
        if isinstance(given, list | tuple):
            return tuple(parameter.read(called(parameter), each) for each in given)
        return parameter.read(called(parameter), given)

    return {each.name: value(each, given) for each in parameters if (given := source.get(each.name)) is not None}


@dataclass(frozen=True)
class Form:
    """A form of the console: some parameters of an operation at a URL."""

    #: A verb and a noun, such as "delete-topic".
    action: str
    #: URL path of the page about the object that it changes; parameters in braces.
    page: str
    title: str
    #: Text of the link and of the button.
    label: str
    _: KW_ONLY
    #: URL path of the form; by default `page` followed by the verb of `action`.
    path: str = ""
    #: URL path of the page that shows the effect; by default `page`.
    to: str = ""
    #: The label of each input field, by parameter.
    fields: Mapping[str, str] = field(default_factory=dict)
    #: The user must type the value of this parameter to confirm.
    typed: str = ""
    #: Multi-line parameters; they are never logged.
    long: frozenset[str] = frozenset()
    #: The flag to set if no keyword argument of a `TypedDict` is filled in.
    otherwise: str = ""
    #: Returns the initial values of the fields, by parameter; None hides a field.
    defaults: Callable[[Any, Arguments], Mapping[str, str | None]] | None = None
    #: Returns the (value, text) pairs of fields with a choice, by parameter.
    choices: Callable[[Any, Arguments], Mapping[str, Sequence[tuple[str, str]]]] | None = None

    def __post_init__(self) -> None:
        if not self.path:
            object.__setattr__(self, "path", f"{self.page}/{self.action.partition('-')[0]}")


class Operations:
    """Base of the parts of `Admin`, one for each kind of object. Each public member is a `Method`."""

    def __init__(self, masters: MasterClient) -> None:
        self._masters = masters


class Method(Generic[P, T, A]):
    """Static type of a method of `Admin`, a plain function at run time; in `aio.Admin` a coroutine function."""

    @overload
    def __get__(self, owner: None, kind: type) -> Callable[Concatenate[Any, P], T]: ...
    @overload
    def __get__(self, owner: AsyncMethods, kind: type) -> Callable[P, Coroutine[Any, Any, A]]: ...
    @overload
    def __get__(self, owner: Operations, kind: type) -> Callable[P, T]: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        raise NotImplementedError


def method(function: Callable[Concatenate[Any, P], T]) -> Method[P, T, T]:
    """Declare a method of `Admin` that is not an operation."""
    declared: Method[P, T, T] = _marked(function, lambda result: result)
    return declared


def iterating(function: Callable[Concatenate[Any, P], Iterator[T]]) -> Method[P, Iterator[T], list[T]]:
    """Declare a method that returns an iterator; its asyncio variant returns a list."""
    declared: Method[P, Iterator[T], list[T]] = _marked(function, list)
    return declared


def _marked(function: Any, collect: Callable[[Any], Any]) -> Any:
    setattr(function, _COLLECT, collect)
    return function


class AsyncMethods:
    """Base of `minimq.aio.Admin`: runs each `Method` of `_admin` on a thread."""

    _admin: Any

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for name, function in inspect.getmembers(cls, lambda member: hasattr(member, _COLLECT)):
            if not inspect.iscoroutinefunction(function):  # inherited ones are wrapped already
                setattr(cls, name, _asynchronous(function))


def _asynchronous(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(self: AsyncMethods, /, *args: Any, **named: Any) -> Any:
        import asyncio  # keeps the start of commands fast

        return await asyncio.to_thread(lambda: getattr(function, _COLLECT)(function(self._admin, *args, **named)))

    return call


@dataclass(frozen=True)
class Operation:
    """A decorator that declares a method of `Admin` as an operation."""

    #: The command: a noun and a verb.
    name: str
    _: KW_ONLY
    #: Renders the result; by default the plan. The view of a change must not call the cluster: it could fail after the
    #: change was made.
    view: Callable[[Any, Arguments, Any, Any], View] = lambda _admin, _given, _result, plan: plan.view()
    #: It changes nothing. All others are planned before they run, and are written to the audit log.
    reads: bool = False
    #: An example command without `minimq`; by default the name.
    example: str = ""
    #: Returns what would change, or raises the error that prevents it. Call `planned` before `run`.
    plan: Callable[[Any, Arguments], Plan] | None = None
    #: The confirmation question if data may be lost or exposed; parameters in braces: "Delete topic {name}?"
    asks: str = ""
    forms: Sequence[Form] = ()
    #: Options that only the plan and the view use; see `flag`.
    flags: Sequence[Parameter] = ()
    #: The `Param`s of keyword arguments of a `TypedDict`.
    abouts: Mapping[str, Param] = field(default_factory=dict)
    #: Arguments with a fixed value: one method may be several operations.
    fixed: Mapping[str, object] = field(default_factory=dict)
    #: The help; by default that of the docstring.
    text: str = ""
    function: Callable[..., Any] = len

    def __call__(self, function: Callable[Concatenate[Any, P], T] | Method[P, T, T]) -> Method[P, T, T]:
        """Declare a method; it may be several operations."""
        if any((self.plan, self.asks, self.forms)) if self.reads else not self.plan:
            raise TypeError(f"{self.name}: give a plan; or reads=True, and no plan, asks or forms")
        declared: Any = function
        setattr(function, _OPERATIONS, [replace(self, function=declared), *getattr(function, _OPERATIONS, [])])
        return method(declared)

    @cached_property
    def _doc(self) -> tuple[str, str, Mapping[str, str]]:
        return _parse(inspect.getdoc(self.function) or "")

    @property
    def summary(self) -> str:
        return re.split(r"\.\s", self.text or self._doc[0])[0].rstrip(".") + "."

    @property
    def help(self) -> str:
        """The whole help, with options in place of parameters in backticks."""
        return self.text or self.with_flags("\n\n".join(filter(None, self._doc[:2])))

    def with_flags(self, text: str) -> str:
        """Replace parameters in backticks by their options."""
        flags = {each.name: each.label for each in self.parameters}
        return re.sub(r"`(\w+)`", lambda match: flags.get(match[1], match[0]), text)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters but `self`, in the order of the signature."""
        found = []
        for each in list(inspect.signature(self.function).parameters.values())[1:]:
            if each.kind is each.VAR_KEYWORD:
                found += _keywords(each.annotation, self.function.__globals__, self.abouts)
                continue
            is_argument = each.kind is each.POSITIONAL_OR_KEYWORD and each.default is each.empty
            text, scope = self._doc[2].get(each.name, ""), self.function.__globals__
            found.append(_parameter(each.name, each.annotation, each.default, scope, text, is_argument=is_argument))
        return tuple(found)

    @property
    def shown(self) -> list[Parameter]:
        """The parameters that commands and forms offer."""
        abouts = [(each, each.about) for each in self.parameters]
        own = [each for each, about in abouts if not (about.is_hidden or about.is_collected)]
        return [each for each in (*own, *self.flags) if each.name not in self.fixed]

    def given(self, **values: Any) -> Arguments:
        """Return all arguments of a call, defaults included."""
        defaults = {
            each.name: each.default if each.about.default is None else each.read(each.name, each.about.default)
            for each in (*self.parameters, *self.flags)
        }
        return Arguments(**{**defaults, **values, **self.fixed})

    def planned(self, admin: Any, given: Arguments) -> Plan | None:
        """Return what `run` would change; None for a read. Raises the error that prevents it."""
        return None if self.reads or self.plan is None else self.plan(admin, given)

    def question(self, given: Arguments, plan: Plan | None) -> str:
        """Return the confirmation question; empty if none is needed."""
        return "" if plan is None or plan.is_harmless else self.asks.format_map(vars(given))

    def run(self, admin: Any, given: Arguments) -> Any:
        """Call the method of `admin`. Raises `MinimqError`."""
        given.collected = []
        for each in self.parameters:
            if each.about.is_collected and getattr(given, each.name) is None:
                setattr(given, each.name, given.collected.append)
        return getattr(admin, self.function.__name__)(**self.arguments(given))

    def arguments(self, given: Arguments) -> dict[str, Any]:
        """Return the arguments of the method; fields of a `TypedDict` that are None are omitted."""
        values = vars(given)
        kept = [each.name for each in self.parameters if not each.is_keyword or values[each.name] is not None]
        return {name: values[name] for name in kept}


def flag(name: str, text: str, option: str = "") -> Parameter:
    """Return a switch that only the plan and the view use."""
    return Parameter(name, bool, False, False, False, text, Param(flag=option))


def operations_of(owner: type) -> list[Operation]:
    members = [each for base in reversed(owner.__mro__) for each in vars(base).values()]
    return [each for member in members for each in getattr(member, "__dict__", {}).get(_OPERATIONS, ())]


def _parameter(
    name: str, annotation: Any, default: Any, scope: Mapping[str, Any], text: str, *, is_argument: bool
) -> Parameter:
    if isinstance(annotation, str):
        annotation = eval(annotation, dict(scope))
    about = Param()
    if get_origin(annotation) is Annotated:
        annotation, about = get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        choices = [each for each in get_args(annotation) if each is not NoneType]
        annotation = next((each for each in choices if get_origin(each) is not None), choices[0])
    origin = get_origin(annotation)
    is_many = inspect.isclass(origin) and issubclass(origin, Iterable)
    kind = get_args(annotation)[0] if is_many else annotation
    kind = kind if inspect.isclass(kind) else str
    return Parameter(
        name,
        kind,
        is_many,
        (is_argument or about.is_argument) and not about.is_option,
        default,
        _capital(about.help or text),
        about,
    )


def _keywords(annotation: str, scope: Mapping[str, Any], abouts: Mapping[str, Param]) -> list[Parameter]:
    [choice] = get_args(eval(annotation, dict(scope)))
    helps = _parse((inspect.getdoc(choice) or "").replace("\nAttributes:\n", "\nArgs:\n"))[2]
    scope = vars(inspect.getmodule(choice))
    found = [
        _parameter(name, each.__forward_arg__, None, scope, helps.get(name, ""), is_argument=False)
        for name, each in choice.__annotations__.items()
    ]
    found = [replace(each, about=abouts.get(each.name, each.about), is_keyword=True) for each in found]
    return [replace(each, help=_capital(each.about.help or each.help)) for each in found]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _parse(doc: str) -> tuple[str, str, Mapping[str, str]]:
    """Return the summary of a docstring, the text below it, and the help of each parameter."""
    head, _, rest = re.sub(r" Raises as `\w+`\.", "", doc).partition("\nArgs:\n")
    summary, _, more = head.partition("\n\n")
    helps: dict[str, str] = {}
    name = ""
    for line in rest.splitlines():
        if line and not line.startswith(" "):
            break
        if match := re.fullmatch(r"    (\w+): (.*)", line):
            name = match[1]
            helps[name] = match[2]
        elif name and line.strip():
            helps[name] += f" {line.strip()}"
    more = re.split(r"(?m)^(?:Returns|Raises|Yields):", more)[0]
    return " ".join(summary.split()), more.strip(), helps
