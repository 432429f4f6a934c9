"""Batches that are made of single messages."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from minimq.sending.pending_batch import PendingBatch, PendingMessage
from minimq_common.model import Message
from support.cases import for_each


def batch_of(sizes: list[int]) -> PendingBatch:
    return PendingBatch("t", None, deque([PendingMessage(Message("t", b"x"), None, size, None) for size in sizes]))


@for_each(
    ("sizes", "taken"), [([1], 1), ([1] * 5, 4), ([5, 5], 2), ([5, 6], 1), ([11, 1], 1), ([10, 1], 1), ([1, 11], 1)]
)
def test_a_batch_takes_four_messages_and_ten_bytes_but_at_least_one(sizes: list[int], taken: int) -> None:
    batch = batch_of(sizes)
    assert len(batch.take(4, 10).messages) == taken
    assert len(batch.messages) == len(sizes) - taken


@given(st.lists(st.integers(1, 50), min_size=1), st.integers(1, 10), st.integers(1, 100))
def test_all_leave_in_order_and_no_batch_is_too_large(sizes: list[int], messages: int, size: int) -> None:
    batch = batch_of(sizes)
    every = list(batch.messages)
    left: list[PendingMessage] = []
    while batch.messages:
        taken = batch.take(messages, size).messages
        assert 1 <= len(taken) <= messages
        assert len(taken) == 1 or sum(item.size for item in taken) <= size
        left += taken
    assert left == every
