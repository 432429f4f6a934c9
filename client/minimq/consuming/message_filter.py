"""The filter of a subscription: `*` for everything, or some tags, and perhaps further conditions."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, Protocol, TypeVar

from minimq_common.batch.header import MAX_TAG, tag_hash
from minimq_common.errors import InvalidArgument

#: "*", tags joined by "||", or a collection of tags.
TagExpression = str | Collection[str]

#: Separators and quotes of other systems. A tag may contain them, but most likely they are a mistake.
_MISTAKES = re.compile(r"[,;|*]|&&|\s(?:OR|AND|or)\s|^['\"]|['\"]$")
#: Tags in a collection are taken literally, except for this.
_JOINED = re.compile(r"\|\|")


def wanted_tags(expression: TagExpression) -> frozenset[str] | None:
    """Return the tags of an expression; None for all messages, with and without a tag. Raises `InvalidArgument`."""
    is_text = isinstance(expression, str)
    parts: object = [part.strip() for part in expression.split("||")] if isinstance(expression, str) else expression
    if not isinstance(parts, Collection) or not parts:
        raise _no_expression(expression)
    mistakes = _MISTAKES if is_text else _JOINED
    for part in parts:
        if not isinstance(part, str) or not part.strip():
            raise _no_expression(expression)
        if len(part) > MAX_TAG:
            raise InvalidArgument(
                f"a subscription names a tag of {len(part)} characters, and the tag of a message has {MAX_TAG} at "
                f"most: {part[:40]!r}..."
            )
        if part != "*" and mistakes.search(part):
            raise InvalidArgument(
                f"{part!r} is no tag expression: join tags with ||, as in paid || refunded, or give a list of tags; "
                "for a pattern, or a tag with such characters, use a where-expression: \"TAGS STARTSWITH 'pa'\" or "
                "\"TAGS = 'a,b'\""
            )
    return None if "*" in parts else frozenset(parts)


T = TypeVar("T")


class Condition(Protocol):
    """A further condition of a filter, from a feature. Immutable; thread-safe."""

    #: In a canonical form.
    text: str
    #: Whether it needs keys or properties.
    reads_texts: bool

    def apply(self, messages: list[T]) -> list[T]:
        """Return the matching messages: received ones, or others with a tag, keys and properties."""


class MessageFilter:
    """A tag expression and conditions, which must all hold. Immutable; thread-safe.

    Args:
        expression: which tags: "*", or for example "paid || refunded" or ["paid", "refunded"].
        conditions: further conditions.

    Attributes:
        text: the expressions in a canonical form: blanks and order of tags make no difference.
        tag_hashes: sorted hashes of the tags, for the filter of brokers; empty when all tags are wanted.
        reads_texts: whether the filter needs keys or properties.

    Raises:
        InvalidArgument: the expression is malformed.
    """

    def __init__(self, expression: TagExpression = "*", conditions: Sequence[Condition] = ()) -> None:
        tags = self._tags = wanted_tags(expression)
        self._conditions = conditions
        self.reads_texts = any(condition.reads_texts for condition in conditions)
        wanted = "*" if tags is None else " || ".join(sorted(tags))
        self.text = " ".join([wanted, *(condition.text for condition in conditions)])
        self.tag_hashes = tuple(sorted(set(map(tag_hash, tags)))) if tags is not None else ()

    def apply(self, messages: list[T]) -> list[T]:
        """Return the matching messages: received ones, or others with a tag, keys and properties."""
        tags = self._tags
        wanted: list[Any] = messages
        if tags is not None:
            wanted = [message for message in wanted if message.tag in tags]
        for condition in self._conditions:
            wanted = condition.apply(wanted)
        return wanted


#: Without the conditions of features.
ALL_MESSAGES = MessageFilter()


def _no_expression(expression: object) -> InvalidArgument:
    return InvalidArgument(
        f"{expression!r} is no tag expression: write * or, for example, paid || refunded, or give a list of tags"
    )
