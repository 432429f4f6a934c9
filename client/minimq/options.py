"""The common base of the options of producers, consumers and commands."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from minimq_common.errors import InvalidArgument
from minimq_common.names import check_address

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: The default name server of commands and programs.
DEFAULT_NAMESERVER = "127.0.0.1:9876"

#: Default seconds that a consumer waits for servers at its start.
START_TIMEOUT_S = 60.0

Options = TypeVar("Options", bound="DataclassInstance")


def nameserver_addresses(nameserver: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses in "HOST:PORT[,HOST:PORT]" or in a sequence. Raises `InvalidArgument`."""
    if not isinstance(nameserver, str | Sequence):
        raise InvalidArgument(f"nameserver is {nameserver!r}: give 'HOST:PORT' or a Cluster")
    parts = nameserver.split(",") if isinstance(nameserver, str) else nameserver
    if not all(isinstance(part, str) for part in parts):
        raise InvalidArgument(f"nameserver is {nameserver!r}: each address must be text, HOST:PORT")
    addresses = tuple(check_address(part.strip()) for part in parts if part.strip())
    if not addresses:
        raise InvalidArgument("no name server is given: write HOST:PORT")
    return addresses


def build_options(options: type[Options], given: Mapping[str, Any], client: Callable[..., object]) -> Options:
    """Return the options that a client was given by name. Raises `InvalidArgument`."""
    names = [field.name for field in dataclasses.fields(options)]
    own = [name for name in inspect.signature(client).parameters if name != "options"]
    reject_unknown(given.keys() - set(names), [*own, *names], f"{options.__name__} has {', '.join(names)}")
    return options(**given)


class NoOptions(TypedDict):
    """No further arguments: type checkers reject them, and so does `reject_options` at run time."""


def reject_options(unknown: Mapping[str, object], made: type) -> None:
    """Raise `InvalidArgument` for arguments that a class does not have; the text suggests the nearest, or lists all."""
    if unknown:
        parameters = inspect.signature(made).parameters.values()
        names = [parameter.name for parameter in parameters if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
        reject_unknown(unknown.keys(), names, f"{made.__name__} has {', '.join(names)}")


def reject_unknown(unknown: Collection[str], names: Sequence[str], otherwise: str) -> None:
    """Raise `InvalidArgument` if an unknown option was given."""
    if unknown:
        import difflib  # only needed after a typo

        given = sorted(unknown)
        near = [found[0] for name in given if (found := difflib.get_close_matches(name, names, 1))]
        hint = f"did you mean {', '.join(dict.fromkeys(near))}?" if near else otherwise
        raise InvalidArgument(f"unknown option {', '.join(given)}: {hint}")


def check_above_zero(options: DataclassInstance, *, but: Sequence[str] = ()) -> None:
    """Raise `InvalidArgument` for a number that is not above 0, or for a wrong type; fields in `but` may be 0."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        # A switch is not a number, though bool is a subclass of int.
        if isinstance(field.default, bool):
            if not isinstance(value, bool):
                raise InvalidArgument(f"{field.name} is {value!r}: it must be True or False")
            continue
        if not isinstance(field.default, int | float):
            continue
        wanted = int if isinstance(field.default, int) else int | float
        if not isinstance(value, wanted) or isinstance(value, bool) or value == float("inf"):
            kind = "a whole number" if wanted is int else "a finite number"
            raise InvalidArgument(f"{field.name} is {value!r}: it must be {kind}")
        if value > 0 or (value == 0 and field.name in but):
            continue
        raise InvalidArgument(f"{field.name} is {value}: it must be {'0 or above' if field.name in but else 'above 0'}")
