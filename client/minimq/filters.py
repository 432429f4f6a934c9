"""The filters of subscriptions: the tags of the kernel, and the conditions of features."""

from __future__ import annotations

from minimq.consuming.message_filter import Condition, MessageFilter, TagExpression
from minimq.features.sql_filters.sql_filter import SqlFilter


def message_filter(tags: TagExpression = "*", where: str | None = None) -> MessageFilter:
    """Return the filter of a subscription. Raises `InvalidArgument` if an expression is malformed."""
    conditions: list[Condition] = []
    if where is not None:
        conditions.append(SqlFilter(where))
    return MessageFilter(tags, conditions)


class Filters:
    """Lets a consumer subscribe with all kinds of filters."""

    _make_filter = staticmethod(message_filter)
