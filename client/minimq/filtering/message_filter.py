"""The filter of a subscription: by tags, and by an expression on properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from minimq.filtering.property_filter import compile_filter
from minimq.filtering.tag_filter import TagExpression, TagFilter
from minimq.filtering.tokens import TokenKind, scan
from minimq_common.batch.header import tag_hash


class Filterable(Protocol):
    """A message, or anything else with a tag, keys and properties."""

    @property
    def tag(self) -> str | None:
        """The tag, None when there is none."""

    @property
    def keys(self) -> Sequence[str]:
        """The keys."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties."""


T = TypeVar("T", bound=Filterable)


class MessageFilter:
    """A tag expression and a where-expression; both must hold. Immutable; thread-safe.

    Args:
        expression: which tags: "*", or for example "paid || refunded" or ["paid", "refunded"].
        where: condition on properties, see docs/filtering.md; None for no condition.

    Attributes:
        text: both expressions in a canonical form: blanks, case of keywords and order of tags make no difference.
        tag_hashes: sorted hashes of the tags, for the filter of brokers; empty when all tags are wanted.
        reads_texts: whether the filter needs keys or properties.

    Raises:
        InvalidArgument: an expression is malformed; the text points at the mistake.
    """

    def __init__(self, expression: TagExpression = "*", where: str | None = None) -> None:
        tags = self._tags = TagFilter(expression).tags
        self._where = None if where is None else compile_filter(where)
        self.reads_texts = self._where is not None and bool(self._where.reads_keys or self._where.names)
        self.text = "*" if tags is None else " || ".join(sorted(tags))
        if where is not None:
            self.text += f" where {_canonical(where)}"
        self.tag_hashes = tuple(sorted(set(map(tag_hash, tags)))) if tags is not None else ()

    def apply(self, messages: list[T]) -> list[T]:
        """Return the messages that are wanted."""
        tags, where = self._tags, self._where
        wanted = messages if tags is None else [message for message in messages if message.tag in tags]
        if where is None:
            return wanted
        # Properties and keys are decoded from the batch only if the expression needs them.
        if where.reads_keys:
            return [message for message in wanted if where.matches(message.properties, message.tag, message.keys)]
        if where.names:
            return [message for message in wanted if where.matches(message.properties, message.tag)]
        return [message for message in wanted if where.matches({}, message.tag)]


def _canonical(where: str) -> str:
    return " ".join(
        str(token.value) if token.kind is TokenKind.WORD else token.written
        for token in scan(where)
        if token.kind is not TokenKind.END
    )
