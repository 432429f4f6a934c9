"""Subscriptions by tag."""

from __future__ import annotations

import pytest

from minimq.consuming.message_filter import MessageFilter, wanted_tags
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
        "open || pa*",
        ["paid", "a||b"],
    ],
)
def test_what_is_probably_a_mistake_is_rejected_with_both_remedies(expression: str | list[str]) -> None:
    with pytest.raises(InvalidArgument, match=r"join tags with \|\|, .* \"TAGS = 'a,b'\""):
        wanted_tags(expression)


@pytest.mark.parametrize("expression", ["x" * 256, ["paid", "x" * 256], "paid || " + "x" * 256])
def test_a_tag_that_no_message_can_have_is_rejected(expression: str | list[str]) -> None:
    with pytest.raises(InvalidArgument, match="a tag of 256 characters, and the tag of a message has 255 at most"):
        wanted_tags(expression)
    assert wanted_tags("x" * 255) == frozenset(["x" * 255])
