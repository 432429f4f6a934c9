"""Subscriptions by tag: `*` for everything, tags joined by `||`, or a list of tags."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from minimq_common.batch.header import MAX_TAG
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
