"""Where-expressions: how deep and how long they may be."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from minimq.features.sql_filters.property_filter import MAX_LENGTH, PropertyFilter
from minimq_common.errors import InvalidArgument

ORDER = {"region": "eu"}


@contextmanager
def stack_of(frames: int) -> Iterator[None]:
    """Run with that much room on the stack."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def test_the_deepest_expression_needs_little_of_the_stack() -> None:
    text = "NOT (count = 7 AND NOT (count = 8 OR " * 16 + "region = 'eu'" + "))" * 16
    with stack_of(250):
        wanted = PropertyFilter(text)
        assert wanted.matches({"count": "7", "region": "eu"}, None)
        assert not wanted.matches({"count": "7", "region": "us"}, None)


@pytest.mark.parametrize("levels", [33, 4000])
def test_what_is_nested_deeper_is_rejected(levels: int) -> None:
    with stack_of(250), pytest.raises(InvalidArgument) as raised:
        PropertyFilter("(" * levels + "a = 1")

    assert raised.value.message == "where: parentheses are nested deeper than 32 levels, at character 33"


def test_long_rows_are_not_deep() -> None:
    with stack_of(250):
        assert PropertyFilter("NOT " * 1000 + "region = 'eu'").matches(ORDER, None)
        assert PropertyFilter("a = 1 OR " * 400 + "region = 'eu'").matches(ORDER, None)
        assert PropertyFilter("(a = 1) OR " * 300 + "region = 'eu'").matches(ORDER, None)
        assert PropertyFilter("TRUE AND " * 400 + "region = 'eu'").matches(ORDER, None)
        assert not PropertyFilter(f"region IN ({'5, ' * 1000}5)").matches(ORDER, None)


def test_an_expression_has_a_largest_length() -> None:
    text = "a = 1".ljust(MAX_LENGTH)
    assert PropertyFilter(text).matches({"a": "1"}, None)
    with pytest.raises(InvalidArgument, match=r"where: the expression has 4,097 characters, the limit is 4,096\Z"):
        PropertyFilter(text + " ")
