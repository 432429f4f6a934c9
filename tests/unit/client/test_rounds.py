"""When a member looks at the allocation."""

from __future__ import annotations

import pytest

from minimq.receiving.rounds import Rounds


@pytest.fixture
def rounds() -> Rounds:
    made = Rounds(gap_s=0.2, interval_s=20.0, now=100.0)
    made.begin(100.0)
    return made


def test_the_first_round_is_at_once() -> None:
    assert Rounds(gap_s=0.2, interval_s=20.0, now=100.0).is_due(100.0)


def test_a_lone_change_makes_a_round_at_once(rounds: Rounds) -> None:
    assert not rounds.is_due(105.0)
    rounds.want(105.0)
    assert rounds.is_due(105.0)
    rounds.begin(105.0)
    assert not rounds.is_due(110.0)


def test_many_changes_make_one_round_now_and_one_after_the_gap(rounds: Rounds) -> None:
    begun = []
    for now in [105.0 + number / 100 for number in range(21)]:
        if now < 105.1:
            rounds.want(now)
        if rounds.is_due(now):
            rounds.begin(now)
            begun.append(round(now, 2))
    assert begun == [105.0, 105.2]
    assert rounds.count == 3


def test_without_a_change_there_is_a_full_round_after_the_interval(rounds: Rounds) -> None:
    rounds.want(110.0)
    assert not rounds.begin(110.0)
    assert not rounds.is_due(119.9)
    assert rounds.is_due(120.0)
    assert rounds.begin(120.0)
    assert not rounds.is_due(139.9)
    assert rounds.is_due(140.0)


def test_it_is_known_for_how_long_there_is_nothing_to_do(rounds: Rounds) -> None:
    assert rounds.due_at == 120.0
    rounds.want(100.1)
    assert rounds.due_at == 100.2, "not before the gap is over"
    rounds.begin(100.2)
    assert rounds.due_at == 120.0


def test_a_round_may_be_wanted_for_later(rounds: Rounds) -> None:
    rounds.want(110.0)
    rounds.want(115.0)
    assert not rounds.is_due(109.9)
    assert rounds.is_due(110.0)
