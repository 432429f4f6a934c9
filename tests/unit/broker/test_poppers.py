"""Consumers that take messages one by one: who counts as there, also before it has come back."""

from __future__ import annotations

import pytest

from minimq_broker.core.popping.poppers import Poppers
from minimq_common.errors import GroupConflict


@pytest.fixture
def poppers() -> Poppers:
    """Return those of a broker that has just started, and expects who has messages."""
    made = Poppers()
    for client_id in ("a", "b"):
        made.expect("g", client_id)
    return made


def test_who_has_messages_counts_as_there_until_it_is_missed(poppers: Poppers) -> None:
    for client_id in ("a", "b"):
        with pytest.raises(GroupConflict, match=f"such as {client_id}"):
            poppers.check_none("g", "member")
        poppers.missed("g", client_id)
        poppers.missed("g", client_id)
    poppers.check_none("g")
    assert poppers.leave("g") == {"member"}
    poppers.missed("g", "a")


def test_who_comes_back_is_counted_once(poppers: Poppers) -> None:
    poppers.came("g", "a")
    poppers.came("g", "a")  # by a second stream
    poppers.missed("g", "a")  # it is not
    assert not poppers.went("g", "a")
    assert poppers.went("g", "a")
    assert poppers.of_group("g") == ["b"]


def test_who_is_there_is_not_expected(poppers: Poppers) -> None:
    poppers.came("g", "c")
    poppers.expect("g", "c")
    assert poppers.went("g", "c")
    assert poppers.of_group("g") == ["a", "b"]
