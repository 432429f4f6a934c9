"""Subscriptions by tag."""

from __future__ import annotations

import pytest

from minimq.filtering.tag_filter import TagFilter
from minimq.receiving.received import ReceivedBatch, ReceivedMessage, StoredBatch
from minimq_common import batch_builder
from minimq_common.errors import InvalidArgument
from minimq_common.model import Message, MessageQueue

TAGS = ["paid", None, "refunded", "paid", "Paid", "re"]


@pytest.fixture(scope="module")
def messages() -> list[ReceivedMessage]:
    data = batch_builder.encode([Message("t", b"x", tag) for tag in TAGS], 0, 0, 0, 10)
    stored = StoredBatch(0, 0, 0, len(TAGS), data)
    return ReceivedBatch(MessageQueue("t", "b", 0), stored).messages(0)


@pytest.mark.parametrize(
    ("expression", "offsets"),
    [
        ("*", [0, 1, 2, 3, 4, 5]),
        ("paid", [0, 3]),
        ("paid || refunded", [0, 2, 3]),
        ("refunded||paid", [0, 2, 3]),
        (" paid ", [0, 3]),
        ("paid || *", [0, 1, 2, 3, 4, 5]),
        ("absent", []),
    ],
)
def test_what_passes(messages: list[ReceivedMessage], expression: str, offsets: list[int]) -> None:
    assert [message.queue_offset for message in TagFilter(expression).apply(messages)] == offsets


@pytest.mark.parametrize("expression", ["", " ", "||", "a ||", "|| a", "a || || b"])
def test_what_is_no_expression_says_what_one_looks_like(expression: str) -> None:
    with pytest.raises(InvalidArgument, match="write \\*"):
        TagFilter(expression)
