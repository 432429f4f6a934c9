"""Examples in help texts are accepted by the command, and those in docstrings by Python."""

from __future__ import annotations

import ast
import inspect
import re
import time
import typing
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import click

import minimq
import minimq.aio
from minimq.admin.operation import operations_of
from minimq.features.dead_letters.dead_letter import DeadLetterFilter
from minimq.features.search.search_bounds import SearchRange
from minimq_cli.commands import Command
from minimq_cli.main import main
from minimq_common.timestamps import timestamp_ms
from support.command import all_commands

_VALUE = r'(?:"[^"]*"|\'[^\']*\'|\[[^\]]*\]|`[^`]*`|[^\s,;"`]+[^\s,;:."`])'
_SUCH_AS = re.compile(rf"(?:such as|for example) ({_VALUE})(?: or ({_VALUE}))?")
#: Values with a unit, and times.
_BARE = re.compile(r"(?<![\w`'\"-])(-?\d+(?:[smhd]|[KMG]i?B)|\d{4}-\d\d-\d\dT[\d:]+Z|\d{13}ms)(?![\w\"])")
_QUOTED = re.compile(r'"(-\d+[smhd]|\d{4}-\d\d-\d\dT[\d:]+Z|\d{13}ms)"')


def examples_of(text: str) -> list[str]:
    found = [each for match in _SUCH_AS.findall(text) for each in match if each]
    return [*found, *_BARE.findall(text), *(f'"{each}"' for each in _QUOTED.findall(text))]


def test_the_command_accepts_the_examples_of_its_help() -> None:
    checked = 0
    for path, command in all_commands(main):
        if not isinstance(command, Command):
            continue
        parameters = {each.flag: each for each in command.operation.shown}
        for option in command.params:
            parameter = parameters.get(option.opts[-1])
            if not isinstance(option, click.Option) or parameter is None or option.is_flag:
                continue
            said = option.help or ""
            assert option.multiple == ("several times" in said and "takes several" not in said), (path, said)
            for example in examples_of(said):
                parameter.read(parameter.flag, example.strip("\"'`"))
                checked += 1
    assert checked > 20


def documented() -> Iterator[tuple[str, str, Any, str]]:
    """Yield the name, the argument, its type and its text, for each argument of the public functions and classes."""
    for module in (minimq, minimq.aio):
        for name in module.__all__:
            member = getattr(module, name)
            yield from _arguments(name, member)
            methods = inspect.getmembers(member, inspect.isfunction) if inspect.isclass(member) else ()
            for method_name, method in methods:
                yield from _arguments(f"{name}.{method_name}", method)
    for operation in operations_of(minimq.Admin):
        yield from _arguments(operation.name, operation.function)
    for choice in (DeadLetterFilter, SearchRange):
        yield from _arguments(choice.__name__, choice)


def _arguments(name: str, member: Any) -> Iterator[tuple[str, str, Any, str]]:
    sections = re.findall(r"\n(?:Args|Attributes):\n((?:    .*\n?|\n)+)", f"{inspect.getdoc(member) or ''}\n")
    function: Callable[..., Any] = member.__init__ if inspect.isclass(member) and not _has_fields(member) else member
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):  # some names are imported for type checkers only
        hints = {}
    for section in sections:
        for argument, text in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE):
            yield name, argument, hints.get(argument, Any), " ".join(text.split())


def _has_fields(kind: type) -> bool:
    return hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__total__")


def test_python_accepts_the_examples_of_its_docstrings() -> None:
    checked = 0
    for name, argument, hint, text in documented():
        assert not re.search(r"given several times|[Rr]epeatable", text), (name, argument)
        for example in examples_of(text):
            if re.match(r"[`A-Za-z]", example):
                continue  # an expression, or prose such as "for example after a leak"
            value = ast.literal_eval(example)  # fails for 7d, which only commands accept
            assert _fits(value, hint), (name, argument, example)
            checked += 1
    assert checked > 10


def _fits(value: object, hint: Any) -> bool:
    kinds = typing.get_args(hint) or (hint,)
    if datetime in kinds and isinstance(value, str):
        return timestamp_ms(value, time.time(), "example") > 0
    if hint is Any or isinstance(value, str | list):
        return int not in kinds and float not in kinds
    return type(value) in kinds or hint in (int, float)
