"""Subscriptions by tag: `*` for everything, or tags joined by `||`."""

from __future__ import annotations

from typing import Protocol, TypeVar

from minimq_common.errors import InvalidArgument


class Tagged(Protocol):
    """A message, or whatever else has a tag."""

    @property
    def tag(self) -> str | None:
        """The tag, None when there is none."""


T = TypeVar("T", bound=Tagged)


class TagFilter:
    """The tags that a subscription wants. Raises `InvalidArgument` for an expression that is none.

    Attributes:
        tags: those that are wanted; None when all messages are, with and without a tag.
    """

    def __init__(self, expression: str) -> None:
        parts = [part.strip() for part in expression.split("||")]
        if not all(parts):
            raise InvalidArgument(f"{expression!r} is no tag expression: write * or, for example, paid || refunded")
        self.tags = None if "*" in parts else frozenset(parts)

    def apply(self, messages: list[T]) -> list[T]:
        """Return the messages that are wanted."""
        if self.tags is None:
            return messages
        return [message for message in messages if message.tag in self.tags]
