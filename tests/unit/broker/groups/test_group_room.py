"""Bounds on the requests of members of groups."""

from __future__ import annotations

import pytest

from minimq_broker.groups import groups
from minimq_broker.groups.groups import GroupConfig, GroupTable, Members
from minimq_common.errors import GroupConflict, SystemBusy
from minimq_common.model import MessageQueue

T = GroupConfig((("t", ""),), "averagely")


def held(count: int, topic: str = "t") -> list[MessageQueue]:
    return [MessageQueue(topic, "broker-a", number) for number in range(count)]


def test_a_group_has_so_many_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MAX_MEMBERS", 3)
    table = GroupTable(0)
    for name in "abc":
        table.join("g", name, T)
    with pytest.raises(SystemBusy, match="group 'g' has 3 members, the limit is 3: stop some"):
        table.join("g", "d", T)
    table.join("g", "a", T)
    table.join("h", "d", T)
    table.leave("g", "b")
    table.join("g", "d", T)
    assert table.members("g").client_ids == ("a", "c", "d")


def test_those_that_were_rejected_count_until_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MAX_MEMBERS", 2)
    table = GroupTable(0)
    table.join("g", "a", T)
    for _ in range(3):
        with pytest.raises(GroupConflict):
            table.join("g", "b", T._replace(allocation="sticky"))
    with pytest.raises(SystemBusy):
        table.join("g", "c", T)
    table.leave("g", "b")
    table.join("g", "c", T)


def test_what_is_held_is_added_to_what_was_said() -> None:
    table = GroupTable(0)
    table.join("g", "a", T, held(6))
    table.hold("g", "a", held(2))
    table.hold("g", "a", held(2, "u"), adds=True)
    assert table.holds("g", "a", MessageQueue("u", "broker-a", 1))
    assert table.holds("g", "a", MessageQueue("t", "broker-a", 1))
    assert not table.holds("g", "a", MessageQueue("t", "broker-a", 5))
    assert table.join("g", "b", T) == Members("g", 2, ("a", "b"), {"a": (*held(2), *held(2, "u"))})


def test_topics_and_filters_of_a_group_have_a_size() -> None:
    table = GroupTable(0)
    table.join("g", "a", GroupConfig((("t", "x" * 200_000),), "averagely"))
    with pytest.raises(SystemBusy, match="topics and filters of group 'g' have 300002 characters, the limit is 262144"):
        table.join("g", "b", GroupConfig((("u", "x" * 100_000),), "averagely"))
    assert table.agreement("g") == GroupConfig((("t", "x" * 200_000),), "averagely")


def test_subscriptions_of_all_members_have_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MAX_SUBSCRIBED", 300)
    table, large = GroupTable(0), T._replace(filters=(("t", "x" * 200),))
    table.join("g", "a", T)
    with pytest.raises(SystemBusy, match="65 characters of names and filters, the limit is 300"):
        table.join("h", "b", large)
    table.leave("g", "a")
    table.join("h", "b", large)
    table.join("h", "b", large)
