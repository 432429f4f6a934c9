"""Batches that are made of single messages."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq.sending.outgoing import Lane, PendingMessage
from minimq_common.model import Message


def lane_of(sizes: list[int]) -> Lane:
    lane = Lane("t", None)
    lane.pending.extend(PendingMessage(Message("t", b"x"), Future(), 0, 0.0, size, 0) for size in sizes)
    return lane


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [([1], 1), ([1] * 5, 4), ([5, 5], 2), ([5, 6], 1), ([11, 1], 1), ([10, 1], 1), ([1, 11], 1)],
)
def test_a_batch_takes_four_messages_and_ten_bytes_but_at_least_one(sizes: list[int], taken: int) -> None:
    lane = lane_of(sizes)
    assert len(lane.take(4, 10).pending) == taken
    assert len(lane.pending) == len(sizes) - taken


@given(st.lists(st.integers(1, 50), min_size=1), st.integers(1, 10), st.integers(1, 100))
def test_all_leave_in_order_and_no_batch_is_too_large(sizes: list[int], messages: int, size: int) -> None:
    lane = lane_of(sizes)
    every = list(lane.pending)
    left: list[PendingMessage] = []
    while lane.pending:
        taken = lane.take(messages, size).pending
        assert 1 <= len(taken) <= messages
        assert len(taken) == 1 or sum(item.size for item in taken) <= size
        left += taken
    assert left == every
