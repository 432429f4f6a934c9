"""Subscriptions by tag."""

from __future__ import annotations

import re

import pytest

from minimq.consuming.message_filter import MessageFilter, TagFilter
from minimq.consuming.received import EncodedRecords, ReceivedBatch, ReceivedMessage
from minimq_common.batch import builder as batch_builder
from minimq_common.errors import InvalidArgument
from minimq_common.model import Message, MessageQueue
from support.cases import for_each

TAGS = ["paid", None, "refunded", "paid", "Paid", "re"]


@pytest.fixture(scope="module")
def messages() -> list[ReceivedMessage]:
    data = batch_builder.encode([Message("t", b"x", tag) for tag in TAGS], 0, 0, 0, 10)
    stored = EncodedRecords(0, 0, 0, len(TAGS), data)
    return ReceivedBatch(MessageQueue("t", "b", 0), stored).messages(0)


@for_each(
    ("expression", "offsets"),
    [
        ("*", [0, 1, 2, 3, 4, 5]),
        ("paid", [0, 3]),
        ("paid || refunded", [0, 2, 3]),
        ("refunded||paid", [0, 2, 3]),
        (" paid ", [0, 3]),
        ("paid || *", [0, 1, 2, 3, 4, 5]),
        ("absent", []),
        (["paid", "refunded"], [0, 2, 3]),
        ({"re"}, [5]),
        (("a,b",), []),
        (["*"], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_what_passes(messages: list[ReceivedMessage], expression: str | list[str], offsets: list[int]) -> None:
    assert [message.queue_offset for message in MessageFilter(expression).apply(messages)] == offsets


def test_a_tag_in_a_list_that_joins_tags_is_answered_with_both_spellings() -> None:
    with pytest.raises(InvalidArgument, match=r"'a\|\|b' has \|\|, which joins tags; give each tag alone") as told:
        TagFilter(["paid", "a||b"])
    where = re.search(r'where="(.*)"', told.value.message)
    assert where
    tagged = Message("t", b"x", "a||b")
    assert MessageFilter("*", where[1]).apply([tagged]) == [tagged]


@for_each(
    "expression",
    [
        "paid,refunded",
        "paid, refunded",
        "paid | refunded",
        "paid|refunded",
        "paid;refunded",
        "paid && refunded",
        "paid OR refunded",
        "'paid' or 'refunded'",
        "'paid' || 'refunded'",
    ],
)
def test_several_tags_in_another_language_are_answered_with_the_right_spelling(expression: str) -> None:
    with pytest.raises(InvalidArgument) as told:
        TagFilter(expression)
    assert 'write "paid || refunded"; or where="TAGS = ' in told.value.message


def test_a_pattern_is_answered_with_what_does_the_same() -> None:
    with pytest.raises(InvalidArgument, match=r"tags have no patterns: .* where=.TAGS STARTSWITH 'pa'"):
        TagFilter("open || pa*")


@pytest.mark.parametrize("expression", ["x" * 256, ["paid", "x" * 256], "paid || " + "x" * 256])
def test_a_tag_that_no_message_can_have_is_rejected(expression: str | list[str]) -> None:
    with pytest.raises(InvalidArgument, match="a tag of 256 characters, and the tag of a message has 255 at most"):
        TagFilter(expression)
    assert TagFilter("x" * 255).tags == frozenset(["x" * 255])
