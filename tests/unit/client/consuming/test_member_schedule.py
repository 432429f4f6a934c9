"""When a member looks at the allocation, and what the answers to its heartbeats tell."""

from __future__ import annotations

import pytest

from minimq.consuming.assignment import RebalanceSchedule
from minimq.consuming.broker_sessions import Heartbeats


@pytest.fixture
def rounds() -> RebalanceSchedule:
    made = RebalanceSchedule(gap_s=0.2, interval_s=20.0, now=100.0)
    made.begin(100.0)
    return made


def test_many_changes_make_one_round_now_and_one_after_the_gap(rounds: RebalanceSchedule) -> None:
    begun = []
    for now in [105.0 + number / 100 for number in range(21)]:
        if now < 105.1:
            rounds.want(now)
        if rounds.is_due(now):
            rounds.begin(now)
            begun.append(round(now, 2))
    assert begun == [105.0, 105.2]


def test_a_lost_answer_ages_none_of_the_later_ones() -> None:
    beats = Heartbeats()
    beats.begin(10.0)
    lost, later = beats.send(10.0), beats.send(11.0)
    beats.answered(later)
    assert beats.answered_at == 11.0
    beats.answered(lost)  # which has been overtaken
    assert beats.answered_at == 11.0
