"""The batches that a producer may still send again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minimq.sending.batch_numbers import BatchNumber, BatchNumbers


def test_numbers_count_from_zero_and_tell_how_many_before_them_are_unsettled() -> None:
    numbers = BatchNumbers()
    assert [numbers.begin() for _ in range(3)] == [BatchNumber(0, 0), BatchNumber(1, 1), BatchNumber(2, 2)]
    numbers.settle(1)  # 0 may still be sent again, so nothing before 3 can be forgotten
    assert numbers.begin() == BatchNumber(3, 3)
    numbers.settle(0)
    assert numbers.begin() == BatchNumber(4, 2)
    for sequence in (2, 3, 4, 4):
        numbers.settle(sequence)
    assert numbers.begin() == BatchNumber(5, 0)


@given(st.lists(st.none() | st.integers(0, 20)))
def test_what_may_be_sent_again_is_never_forgotten(steps: list[int | None]) -> None:
    numbers = BatchNumbers()
    begun: list[BatchNumber] = []
    open_: set[int] = set()
    for step in steps:
        if step is None:
            number = numbers.begin()
            assert number.sequence == len(begun)
            assert number.sequence - number.unsettled == min(open_, default=number.sequence)
            begun.append(number)
            open_.add(number.sequence)
        else:
            numbers.settle(step)
            open_.discard(step)
