"""Members of consumer groups: what they have to agree on, and the versions of their list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq_broker.groups import groups as groups_module
from minimq_broker.groups.groups import GroupConfig, GroupTable, Members
from minimq_common.errors import GroupConflict
from minimq_common.model import MessageQueue
from support.cases import for_each

T = GroupConfig((("t", ""),), "averagely")
WITH_U = GroupConfig((("t", ""), ("u", "")), "averagely")
RED = GroupConfig((("t", "red"),), "averagely")
RED_WITH_U = GroupConfig((("t", "red"), ("u", "")), "averagely")

Q0, Q1, Q2 = (MessageQueue("t", "broker-a", number) for number in range(3))


def test_members_come_and_go_in_growing_versions() -> None:
    table = GroupTable(first_version=100)

    assert table.join("g", "b", T) == Members("g", 101, ("b",), {})
    assert table.join("g", "a", T) == Members("g", 102, ("a", "b"), {})
    assert table.join("g", "a", T) is None
    assert table.join("h", "a", T) == Members("h", 103, ("a",), {})
    assert table.members("g") == Members("g", 102, ("a", "b"), {})
    assert sorted(table.names()) == ["g", "h"]
    assert table.leave("g", "a") == Members("g", 104, ("b",), {})
    assert table.leave("g", "a") is None
    assert table.leave("g", "b") == Members("g", 105, (), {})
    assert table.leave("absent", "b") is None
    assert table.members("g") == Members("g", 0, (), {})
    assert table.agreement("g") is None
    assert table.join("g", "a", T) == Members("g", 106, ("a",), {})


@for_each(
    ("other", "text"),
    [
        (T._replace(allocation="circle"), "allocates queues by 'averagely', this member by 'circle'"),
        (RED, "filters topic 't' by '', this member by 'red'.*same filters"),
        (RED_WITH_U, "filters topic 't' by '', this member by 'red'.*same filters"),
        (T._replace(handover_timeout_ms=50_000), "of 0 s, this member one of 50 s.*same handover_timeout_s"),
    ],
)
def test_a_member_that_contradicts_the_others_is_rejected_and_changes_nothing(other: GroupConfig, text: str) -> None:
    table = GroupTable(0)
    before = table.join("g", "a", T, [Q0])

    with pytest.raises(GroupConflict, match=text):
        table.join("g", "b", other, [Q1])

    assert table.members("g") == before
    assert table.agreement("g") == T


def test_what_was_agreed_on_before_a_start_rejects_others_for_a_while() -> None:
    table = GroupTable(0, 10.0, {"g": T})
    with pytest.raises(GroupConflict, match="all members of a group need the same filters"):
        table.join("g", "b", RED, now=9.9)
    assert table.names() == []
    assert table.agreement("g") is None
    assert table.join("other", "b", RED, now=0.0)
    assert table.join("g", "a", T, now=9.9)
    with pytest.raises(GroupConflict):
        table.join("g", "b", RED, now=10.0)


def test_a_lone_member_that_is_back_after_a_start_may_change_all() -> None:
    table = GroupTable(0, 10.0, {"g": T})
    table.join("g", "a", T, now=1.0)
    assert table.join("g", "a", RED, now=2.0)
    assert table.agreement("g") == RED
    with pytest.raises(GroupConflict):
        table.join("g", "b", T, now=3.0)
    table = GroupTable(0, 10.0, {"g": RED_WITH_U})
    table.join("g", "a", GroupConfig((("u", ""),), "averagely"), now=1.0)
    with pytest.raises(GroupConflict):  # those who read t are still to come
        table.join("g", "a", GroupConfig((("t", ""), ("u", "")), "averagely"), now=2.0)


def test_a_topic_of_before_a_start_is_remembered_until_a_member_that_has_it_comes_back() -> None:
    table = GroupTable(0, 10.0, {"g": RED_WITH_U})
    table.join("g", "a", GroupConfig((("u", ""),), "averagely"), now=1.0)
    assert table.agreement("g") == RED_WITH_U
    with pytest.raises(GroupConflict):
        table.join("g", "b", T, now=9.9)
    assert table.end_recovery() == ["g"]
    assert table.agreement("g") == GroupConfig((("u", ""),), "averagely")
    assert table.admissible("g", now=9.9) == ["b"]
    assert table.join("g", "b", T, now=9.9)
    assert table.agreement("g") == WITH_U


# ---- different topics -----------------------------------------------------------------------------


# ---- the end of a conflict --------------------------------------------------------------------------


def test_who_was_rejected_is_told_once_when_nobody_is_contradicted_any_more() -> None:
    table = GroupTable(0)
    for old in ("a", "b"):
        table.join("g", old, T)
    with pytest.raises(GroupConflict):
        table.join("g", "new", RED)
    table.leave("g", "a")
    assert table.admissible("g") == []
    table.leave("g", "b")
    assert table.admissible("g") == ["new"]
    assert table.admissible("g") == []
    assert table.join("g", "new", RED)


# ---- changing one's mind ----------------------------------------------------------------------------


def test_what_members_held_is_frozen_when_a_version_begins() -> None:
    table = GroupTable(0)
    table.join("g", "a", T, [Q1, Q0, Q1])
    assert table.members("g").held == {"a": (Q0, Q1)}

    table.hold("g", "a", [Q0])
    assert table.join("g", "a", T, [Q2]) is None
    table.hold("g", "stranger", [Q1])
    table.hold("absent", "a", [Q1])
    assert table.members("g").held == {"a": (Q0, Q1)}

    joined = table.join("g", "b", T)
    assert joined is not None
    assert joined.held == {"a": (Q2,)}
    table.hold("g", "b", [Q1])
    table.hold("g", "a", [])
    left = table.leave("g", "a")
    assert left is not None
    assert left.held == {"b": (Q1,)}
    assert joined.held == {"a": (Q2,)}


queues = st.lists(st.sampled_from([Q0, Q1, Q2]), max_size=3)
steps = st.tuples(st.sampled_from(["join", "hold", "leave"]), st.sampled_from("abc"), queues)


@given(st.lists(steps))
def test_whoever_looks_at_one_version_sees_the_same(history: list[tuple[str, str, list[MessageQueue]]]) -> None:
    table = GroupTable(0)
    seen: dict[int, Members] = {}
    for action, client, held in history:
        if action == "join":
            table.join("g", client, T, held)
        elif action == "hold":
            table.hold("g", client, held)
        else:
            table.leave("g", client)
        members = table.members("g")
        if members.client_ids:
            assert seen.setdefault(members.version, members) == members
            assert members.version == max(seen)
            assert members.held.keys() <= set(members.client_ids)


def test_what_members_hold_is_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_module, "MAX_HELD_OF_GROUP", 10)
    monkeypatch.setattr(groups_module, "MAX_HELD", 15)
    table = GroupTable(1)

    def held(number: int) -> list[MessageQueue]:
        return [MessageQueue("t", "b", queue_id) for queue_id in range(number)]

    def remembered(group: str) -> dict[str, int]:
        return {name: len(queues) for name, queues in table.members(group).held.items()}

    table.join("g", "a", T, held(7))
    table.join("g", "b", T, held(7))
    table.join("other", "a", T, held(9))
    assert (remembered("g"), remembered("other")) == ({"a": 7, "b": 3}, {"a": 5})
    table.hold("g", "a", held(2))
    table.hold("g", "b", held(9))
    table.leave("other", "a")
    table.join("g", "c", T, held(4))
    assert remembered("g") == {"a": 2, "b": 8}
    table.leave("g", "b")
    table.hold("g", "c", held(4))
    table.join("g", "d", T, held(9))
    assert remembered("g") == {"a": 2, "c": 4, "d": 4}
