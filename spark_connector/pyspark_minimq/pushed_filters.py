"""The messages that a batch query need not read, by filters that Spark hands down. Decides only, asks nobody.

Spark applies all filters once more to what it gets, so that these only need to keep every message that is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """The sum of all filters.

    Attributes:
        tags: only messages with one of these; None for all.
        first_ms: only messages stored at this time or later, in ms since 1970; None for all.
        end_ms: only messages stored before this time; None for all.
    """

    tags: frozenset[str] | None = None
    first_ms: int | None = None
    end_ms: int | None = None

    @property
    def excludes_all(self) -> bool:
        """True when no message can be what is wanted."""
        is_never = self.first_ms is not None and self.end_ms is not None and self.first_ms >= self.end_ms
        return is_never or (self.tags is not None and not self.tags)


def combine(filters: Iterable[Filter]) -> PushedFilters:
    """Return what filters say that all have to hold; those that say nothing useful are left out."""
    pushed = PushedFilters()
    for each in filters:
        column: Sequence[str] = getattr(each, "attribute", ())
        value = getattr(each, "value", None)
        if len(column) != 1 or value is None:
            continue
        if column[0].lower() == "tag":
            pushed = _with_tag(pushed, each, value)
        elif column[0].lower() == "store_timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
            pushed = _with_time(pushed, each, value)
    return pushed


def _with_tag(pushed: PushedFilters, each: Filter, value: object) -> PushedFilters:
    if isinstance(each, In):
        tags = frozenset(tag for tag in each.value if isinstance(tag, str))
    elif isinstance(each, EqualTo | EqualNullSafe) and isinstance(value, str):
        tags = frozenset({value})
    else:
        return pushed
    return replace(pushed, tags=tags if pushed.tags is None else pushed.tags & tags)


def _with_time(pushed: PushedFilters, each: Filter, moment: datetime) -> PushedFilters:
    """Times of messages are whole milliseconds, those of filters may be between them."""
    at_or_after_ms = -((_EPOCH - moment) // _MS)
    after_ms = (moment - _EPOCH) // _MS + 1
    is_equal = isinstance(each, EqualTo | EqualNullSafe)
    if is_equal or isinstance(each, GreaterThanOrEqual):
        pushed = _from(pushed, at_or_after_ms)
    elif isinstance(each, GreaterThan):
        pushed = _from(pushed, after_ms)
    if is_equal or isinstance(each, LessThanOrEqual):
        pushed = _before(pushed, after_ms)
    elif isinstance(each, LessThan):
        pushed = _before(pushed, at_or_after_ms)
    return pushed


def _from(pushed: PushedFilters, time_ms: int) -> PushedFilters:
    return replace(pushed, first_ms=time_ms if pushed.first_ms is None else max(pushed.first_ms, time_ms))


def _before(pushed: PushedFilters, time_ms: int) -> PushedFilters:
    return replace(pushed, end_ms=time_ms if pushed.end_ms is None else min(pushed.end_ms, time_ms))
