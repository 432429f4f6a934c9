"""The filter of a subscription: `*` for everything, or some tags, and perhaps an expression on properties."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from minimq.features.sql_filters.property_filter import PropertyFilter
from minimq.features.sql_filters.tokens import TokenKind, scan
from minimq_common.batch.header import MAX_TAG, tag_hash
from minimq_common.errors import InvalidArgument

#: "*", tags joined by "||", or a collection of tags.
TagExpression = str | Collection[str]

#: Separators and quotes of other systems. A tag may contain them, but most likely they are a mistake.
_MISTAKES = re.compile(r"[,;|*]|&&|\s(?:OR|AND|or)\s|^['\"]|['\"]$")
_JOINTS = re.compile(r"\s*(?:[,;|]|&&|\s(?:OR|AND|or)\s)\s*")


class Spelling(NamedTuple):
    """The notation of the two kinds of filters in errors, for example as command line options."""

    #: Prefix of a quoted tag expression.
    tags: str = ""
    #: Prefix of a quoted where-expression.
    where: str = "where="


IN_PYTHON = Spelling()


class TagFilter:
    """The tags that a subscription wants. Raises `InvalidArgument` for a malformed expression.

    Args:
        expression: "*" for all messages, "paid || refunded" for some tags, or a collection of tags. Tags in a
            collection are taken literally; a text that looks like a mistake, such as "paid,refunded", is rejected.
        spelling: how errors write filters.

    Attributes:
        tags: the wanted tags; None for all messages, with and without a tag.
    """

    def __init__(self, expression: TagExpression, spelling: Spelling = IN_PYTHON) -> None:
        if isinstance(expression, str):
            parts = _of_text(expression, spelling)
        elif isinstance(expression, Collection):
            parts = _of_collection(expression, spelling)
        else:
            raise _no_expression(expression)
        self.tags = None if "*" in parts else frozenset(parts)
        longest = max(self.tags or (), key=len, default="")
        if len(longest) > MAX_TAG:
            raise InvalidArgument(
                f"a subscription names a tag of {len(longest)} characters, and the tag of a message has {MAX_TAG} at "
                f"most: {longest[:40]!r}..."
            )


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
        self._where = None if where is None else PropertyFilter(where)
        self.reads_texts = self._where is not None and bool(self._where.reads_keys or self._where.names)
        self.text = "*" if tags is None else " || ".join(sorted(tags))
        if where is not None:
            self.text += f" where {_canonical(where)}"
        self.tag_hashes = tuple(sorted(set(map(tag_hash, tags)))) if tags is not None else ()

    def apply(self, messages: list[T]) -> list[T]:
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


def _of_text(expression: str, spelling: Spelling) -> list[str]:
    parts = [part.strip() for part in expression.split("||")]
    if not all(parts):
        raise _no_expression(expression)
    for part in parts:
        if part != "*" and _MISTAKES.search(part):
            raise _mistaken(expression, part, spelling)
    return parts


def _of_collection(tags: Collection[object], spelling: Spelling) -> list[str]:
    parts = [part for part in tags if isinstance(part, str) and part.strip()]
    if not parts or len(parts) < len(tags):
        raise _no_expression(tags)
    joined = next((part for part in parts if "||" in part), None)
    if joined is not None:
        quoted = joined.replace("'", "''")
        raise InvalidArgument(
            f"{tags!r} is no tag expression: {joined!r} has ||, which joins tags; give each tag alone, or "
            f"{spelling.where}\"TAGS = '{quoted}'\" if that is the name of one tag"
        )
    return parts


def _no_expression(expression: object) -> InvalidArgument:
    return InvalidArgument(
        f"{expression!r} is no tag expression: write * or, for example, paid || refunded, or give a list of tags"
    )


def _mistaken(expression: str, part: str, spelling: Spelling) -> InvalidArgument:
    if "*" in part:
        beginning = part.partition("*")[0].replace("'", "''") or "pa"
        return InvalidArgument(
            f"{part!r} is no tag, and tags have no patterns: for those that begin so, use "
            f"{spelling.where}\"TAGS STARTSWITH '{beginning}'\""
        )
    tags = [tag.strip("'\"") for whole in expression.split("||") for tag in _JOINTS.split(whole.strip())]
    quoted = part.replace("'", "''")
    return InvalidArgument(
        f'{expression!r} is no tag expression: write {spelling.tags}"{" || ".join(filter(None, tags))}"; or '
        f"{spelling.where}\"TAGS = '{quoted}'\" if that is the name of one tag"
    )
