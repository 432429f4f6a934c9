"""Subscriptions by property: conditions as behind WHERE in SQL, for example `region = 'eu' AND amount > 10`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from minimq.filtering.compiler import compile_expression
from minimq.filtering.expression import SystemName, names_in
from minimq.filtering.parser import parse
from minimq_common.errors import InvalidArgument
from minimq_common.words import kind_of

#: Characters that a where-expression may have.
MAX_LENGTH: Final = 4096


class PropertyFilter:
    """Conditions of a subscription on properties, tag and keys. Never changes; thread-safe.

    Made by `compile_filter`.
    """

    __slots__ = ("_check", "names", "reads_keys", "text")

    def __init__(self, text: str) -> None:
        expression = parse(text)
        self.text = text
        found = frozenset(names_in(expression))
        self.names = frozenset(name for name in found if isinstance(name, str))
        self.reads_keys = SystemName.KEYS in found
        self._check = compile_expression(expression)

    def matches(self, properties: Mapping[str, str], tag: str | None, keys: Sequence[str] = ()) -> bool:
        """Tell whether the expression is true for a message; when it is false or unknown, the message is not wanted."""
        return self._check(properties, tag, keys)

    def __repr__(self) -> str:
        return f"PropertyFilter({self.text!r})"


def compile_filter(text: str) -> PropertyFilter:
    """Return the filter that a where-expression describes; docs/filtering.md describes the language."""
    if not isinstance(text, str):
        raise InvalidArgument(f"where is {kind_of(text)}: give the text of an expression")
    if len(text) > MAX_LENGTH:
        raise InvalidArgument(f"where: the expression has {len(text):,} characters, the limit is {MAX_LENGTH:,}")
    if not text.strip():
        raise InvalidArgument("where: the expression is empty; write, for example, region = 'eu' AND amount > 10")
    return PropertyFilter(text)
