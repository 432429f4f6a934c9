"""Tests that are played for many cases."""

from __future__ import annotations

import pytest

from support.cases import for_each


def test_each_case_is_played_and_named_if_it_fails() -> None:
    played: list[tuple[int, int]] = []

    @for_each("left", [1, 2])
    @for_each("right", iter([3, 4]))
    def play(left: int, right: int) -> None:
        played.append((left, right))
        assert (left, right) != (2, 4)

    with pytest.raises(AssertionError) as failed:
        play()
    assert played == [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert failed.value.__notes__ == ["in the case 4", "in the case 2"]


def test_a_test_without_cases_is_rejected() -> None:
    used_up = iter([1])
    assert [*used_up]
    with pytest.raises(ValueError, match="without cases"):
        for_each("number", used_up)
