"""Subscriptions by tag and by property together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from minimq.filters import message_filter
from minimq_common.batch.header import tag_hash
from support.cases import for_each


@dataclass
class Order:
    tag: str | None
    properties: Mapping[str, str] = field(default_factory=dict)
    keys: Sequence[str] = ()


ORDERS = [
    Order("paid", {"region": "eu"}),
    Order("paid", {"region": "us"}),
    Order("open", {"region": "eu"}),
    Order(None, keys=["o-1", "o-2"]),
]


@for_each(
    ("expression", "where", "wanted"),
    [
        ("*", None, [0, 1, 2, 3]),
        ("paid", None, [0, 1]),
        ("*", "region = 'eu'", [0, 2]),
        ("paid", "region = 'eu'", [0]),
        ("paid || open", "TAGS = 'open'", [2]),
        ("*", "TAGS IS NULL", [3]),
        ("*", "KEYS = 'o-2'", [3]),
        ("*", "KEYS IS NULL AND region = 'eu'", [0, 2]),
    ],
)
def test_both_must_hold(expression: str, where: str | None, wanted: list[int]) -> None:
    assert message_filter(expression, where).apply(ORDERS) == [ORDERS[index] for index in wanted]


@for_each(
    ("one", "other"),
    [
        (("paid||open", None), (" open ||  paid", None)),
        (("a || *", None), ("*", None)),
        (("*", "a='x y' and b in(1,2)"), ("*", "a  =  'x y'  AND b IN (1, 2)")),
        (("*", 'NOT "a b" is null'), ("*", 'not "a b" IS NULL')),
    ],
)
def test_the_same_written_differently_has_one_text(one: tuple[str, str | None], other: tuple[str, str | None]) -> None:
    assert message_filter(*one).text == message_filter(*other).text


@for_each(
    ("one", "other"),
    [
        (("a", None), ("A", None)),
        (("a", None), ("*", "TAGS = 'a'")),
        (("*", "a = 'x'"), ("*", "a = 'X'")),
        (("*", "a = 'x  y'"), ("*", "a = 'x y'")),
        (("*", "a = 1"), ("*", "a = '1'")),
        (("*", '"AND" = 1'), ("*", "b = 1")),
    ],
)
def test_what_differs_has_another_text(one: tuple[str, str | None], other: tuple[str, str | None]) -> None:
    assert message_filter(*one).text != message_filter(*other).text


def test_brokers_know_tags_by_their_hashes() -> None:
    assert message_filter("*", "TAGS = 'a'").tag_hashes == ()
    assert message_filter("b || a").tag_hashes == tuple(sorted([tag_hash("a"), tag_hash("b")]))
