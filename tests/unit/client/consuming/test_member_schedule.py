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


def test_without_a_change_there_is_a_full_round_after_the_interval(rounds: RebalanceSchedule) -> None:
    rounds.want(110.0)
    assert not rounds.begin(110.0)
    assert not rounds.is_due(119.9)
    assert rounds.is_due(120.0)
    assert rounds.begin(120.0)
    assert not rounds.is_due(139.9)
    assert rounds.is_due(140.0)


def test_an_answer_counts_from_when_its_heartbeat_was_sent() -> None:
    beats = Heartbeats()
    beats.begin(10.0)
    first, second = beats.send(10.0), beats.send(11.0)
    beats.answered(first)
    assert beats.answered_at == 10.0
    beats.answered(second)
    assert beats.answered_at == 11.0


def test_a_lost_answer_ages_none_of_the_later_ones() -> None:
    beats = Heartbeats()
    beats.begin(10.0)
    lost, later = beats.send(10.0), beats.send(11.0)
    beats.answered(later)
    assert beats.answered_at == 11.0
    beats.answered(lost)  # which has been overtaken
    assert beats.answered_at == 11.0


def test_a_new_session_owes_nothing_to_the_one_before() -> None:
    beats = Heartbeats()
    beats.begin(10.0)
    former = beats.send(10.0)
    beats.begin(20.0)
    beats.answered(former)
    assert beats.answered_at == 20.0
    beats.answered(beats.send(21.0))
    assert beats.answered_at == 21.0
