"""Filters of Spark spare messages, and none that is wanted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from pyspark_minimq.pushed_filters import PushedFilters, combine

TAG, TIME = ("tag",), ("store_timestamp",)
AT = datetime(2026, 1, 31, 8, tzinfo=UTC)
MS = round(AT.timestamp() * 1000)
BETWEEN = AT + timedelta(microseconds=500)


@pytest.mark.parametrize(
    ("filters", "tags"),
    [
        ([EqualTo(TAG, "paid"), IsNotNull(TAG)], {"paid"}),
        ([EqualNullSafe(("TAG",), "paid")], {"paid"}),
        ([In(TAG, ("paid", "refunded", None))], {"paid", "refunded"}),
        ([In(TAG, ("paid", "refunded")), EqualTo(TAG, "paid")], {"paid"}),
        ([EqualTo(TAG, "paid"), EqualTo(TAG, "refunded")], set()),
        ([EqualNullSafe(TAG, None)], None),
        ([Not(EqualTo(TAG, "paid")), StringStartsWith(TAG, "p"), GreaterThan(TAG, "p")], None),
        ([EqualTo(("properties", "tag"), "paid"), EqualTo(("topic",), "paid")], None),
    ],
)
def test_tags(filters: list[Filter], tags: set[str] | None) -> None:
    pushed = combine(filters)
    assert pushed == PushedFilters(tags=None if tags is None else frozenset(tags))
    assert pushed.excludes_all == (tags == set())


@pytest.mark.parametrize(
    ("filters", "first_ms", "end_ms"),
    [
        ([GreaterThanOrEqual(TIME, AT)], MS, None),
        ([GreaterThanOrEqual(TIME, BETWEEN)], MS + 1, None),
        ([GreaterThan(TIME, AT)], MS + 1, None),
        ([GreaterThan(TIME, BETWEEN)], MS + 1, None),
        ([LessThan(TIME, AT)], None, MS),
        ([LessThan(TIME, BETWEEN)], None, MS + 1),
        ([LessThanOrEqual(TIME, AT)], None, MS + 1),
        ([LessThanOrEqual(TIME, BETWEEN)], None, MS + 1),
        ([EqualTo(TIME, AT)], MS, MS + 1),
        ([GreaterThan(TIME, AT), GreaterThanOrEqual(TIME, AT + timedelta(seconds=1))], MS + 1000, None),
        ([LessThan(TIME, AT.astimezone(timezone(timedelta(hours=5)))), LessThan(TIME, BETWEEN)], None, MS),
        ([GreaterThan(TIME, AT.replace(tzinfo=None)), Not(GreaterThan(TIME, AT))], None, None),
    ],
)
def test_times(filters: list[Filter], first_ms: int | None, end_ms: int | None) -> None:
    assert combine(filters) == PushedFilters(first_ms=first_ms, end_ms=end_ms)


def test_times_that_exclude_each_other() -> None:
    assert combine([GreaterThan(TIME, AT), LessThan(TIME, AT)]).excludes_all
    assert combine([EqualTo(TIME, BETWEEN)]).excludes_all
    assert not combine([EqualTo(TIME, AT)]).excludes_all
