"""The time for which `minimq consume --exit-at-end` waits for brokers."""

from __future__ import annotations

from minimq.cli.stored_ends import BrokerWaits


def test_each_broker_is_waited_for_from_when_it_was_first_seen_to_be_away() -> None:
    waits = BrokerWaits(30.0)
    assert waits.look({"a"}, 100.0) == {"a"}
    assert waits.look({"a", "b"}, 110.0) == {"b"}
    assert waits.given_up(129.9) == set()
    assert waits.given_up(130.0) == {"a"}
    assert waits.given_up(140.0) == {"a", "b"}


def test_a_broker_that_was_back_is_waited_for_anew() -> None:
    waits = BrokerWaits(30.0)
    waits.look({"a"}, 100.0)
    assert waits.look((), 110.0) == set()
    assert waits.given_up(200.0) == set()
    assert waits.look({"a"}, 120.0) == {"a"}
    assert waits.given_up(149.9) == set()
    assert waits.given_up(150.0) == {"a"}
