"""Subscriptions by property: conditions as behind WHERE in SQL, for example `region = 'eu' AND amount > 10`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minimq.filtering.compiler import compile_expression
from minimq.filtering.expression import names_in
from minimq.filtering.parser import parse
from minimq_common.errors import InvalidArgument

#: Characters that a where-expression may have.
MAX_LENGTH: Final = 4096


class PropertyFilter:
    """What a subscription wants of properties and tag. Never changes; thread-safe. Made by `compile_filter`.

    Attributes:
        text: the expression as the user wrote it.
        names: the properties that it looks at, without the tag; when empty, no properties need to be read.
    """

    __slots__ = ("_check", "names", "text")

    def __init__(self, text: str) -> None:
        expression = parse(text)
        self.text = text
        self.names = frozenset(names_in(expression))
        self._check = compile_expression(expression)

    def matches(self, properties: Mapping[str, str], tag: str | None) -> bool:
        """Tell whether the expression is true for a message; when it is false or unknown, the message is not wanted."""
        return self._check(properties, tag)

    def __repr__(self) -> str:
        return f"PropertyFilter({self.text!r})"


def compile_filter(text: str) -> PropertyFilter:
    """Return the filter that a where-expression describes; docs/filtering.md describes the language.

    Raises:
        InvalidArgument: the text is no such expression; the error shows the place. Or it has more than 4,096
            characters, or more than 32 levels of parentheses.
    """
    if len(text) > MAX_LENGTH:
        raise InvalidArgument(f"where: the expression has {len(text):,} characters, the limit is {MAX_LENGTH:,}")
    if not text.strip():
        raise InvalidArgument("where: the expression is empty; write, for example, region = 'eu' AND amount > 10")
    return PropertyFilter(text)
