"""How long ago a broker was known to be there: told by answers that name their heartbeat."""

from __future__ import annotations

from minimq.receiving.heartbeats import Heartbeats


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


def test_an_answer_without_a_number_is_one_to_the_oldest_heartbeat() -> None:
    """Brokers of earlier versions answer every heartbeat, in order."""
    beats = Heartbeats()
    beats.begin(10.0)
    beats.send(10.0)
    beats.send(11.0)
    beats.answered(0)
    assert beats.answered_at == 10.0
    beats.answered(0)
    assert beats.answered_at == 11.0
    beats.answered(0)
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
