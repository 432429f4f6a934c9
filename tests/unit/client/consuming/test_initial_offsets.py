"""The initial offsets of a group, as a member knows them."""

from __future__ import annotations

from minimq.consuming.assignment import EVER_MS, OFFLINE_TIMEOUT_S, InitialOffsets

CARRIERS = {"t": {"broker-a", "broker-b"}}


def test_a_topic_is_undecided_until_all_brokers_that_carry_it_have_told() -> None:
    begun = InitialOffsets()
    assert begun.undecided(CARRIERS, 100.0) == {"t"}
    begun.reported("broker-a", {})
    assert begun.undecided(CARRIERS, 100.1) == {"t"}
    begun.reported("broker-b", {"other": 1.0})
    assert begun.undecided(CARRIERS, 100.2) == set()
    assert begun.ago_ms("t", 100.2) is None


def test_a_broker_that_is_offline_is_waited_for_and_then_nothing_is_passed_over() -> None:
    begun = InitialOffsets()
    begun.reported("broker-a", {})
    assert begun.undecided(CARRIERS, 100.0) == {"t"}
    assert begun.undecided(CARRIERS, 99.9 + OFFLINE_TIMEOUT_S) == {"t"}
    assert begun.undecided(CARRIERS, 100.0 + OFFLINE_TIMEOUT_S) == set()
    assert begun.ago_ms("t", 100.0 + OFFLINE_TIMEOUT_S) == EVER_MS
    begun.began("t", 104.0)  # here; where else it has to begin it begins by then
    assert begun.ago_ms("t", 105.0) == 1000


def test_the_time_of_a_broker_is_as_it_said_or_earlier() -> None:
    begun = InitialOffsets()
    assert not begun.has_reported("broker-a")
    assert begun.time_ms("broker-a", 100.0) == 0
    begun.reported("broker-a", {}, 1_700_000_000.0 - 99.5)  # it was said before it was heard, at 99.5
    assert begun.has_reported("broker-a")
    assert begun.time_ms("broker-a", 100.0) == 1_700_000_000_500
