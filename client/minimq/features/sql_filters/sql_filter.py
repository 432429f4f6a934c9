"""The `where` of a subscription."""

from __future__ import annotations

from typing import Any, TypeVar

from minimq.features.sql_filters.property_filter import PropertyFilter
from minimq.features.sql_filters.tokens import TokenKind, scan

T = TypeVar("T")


class SqlFilter:
    """A condition on properties, keys and tags; a `Condition` of filters. Immutable; thread-safe.

    Raises:
        InvalidArgument: the expression is malformed; the text points at the mistake.
    """

    def __init__(self, where: str) -> None:
        self._where = PropertyFilter(where)
        self.reads_texts = bool(self._where.reads_keys or self._where.names)
        written = (
            str(token.value) if token.kind is TokenKind.WORD else token.written
            for token in scan(where)
            if token.kind is not TokenKind.END
        )
        self.text = f"where {' '.join(written)}"

    def apply(self, messages: list[T]) -> list[T]:
        """Return the matching messages."""
        where = self._where
        wanted: list[Any] = messages
        # Properties and keys are decoded from the batch only if the expression needs them.
        if where.reads_keys:
            return [message for message in wanted if where.matches(message.properties, message.tag, message.keys)]
        if where.names:
            return [message for message in wanted if where.matches(message.properties, message.tag)]
        return [message for message in wanted if where.matches({}, message.tag)]
