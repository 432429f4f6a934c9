"""The decisions of the broker: leases, groups and waiters, as tables and as properties."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from minimq_broker.groups.groups import GroupConfig
from minimq_broker.groups.idle_groups import GroupExpiry
from minimq_broker.groups.leases import LeaseKey
from minimq_broker.replication.term_history import TermStart
from minimq_broker.state.facts import (
    CommittedOffset,
    Fact,
    GroupAgreed,
    GroupDeleted,
    GroupStarted,
    OffsetsCommitted,
    PermissionSet,
    TermBegun,
    Topic,
    TopicSet,
)
from minimq_broker.state.producers import BatchLocation
from minimq_broker.state.state import BatchApplied, QueueEnd, QueueKey, State
from minimq_broker.state.state_rows import changed_rows, load_row
from minimq_common.errors import StoreError

KEY = LeaseKey("g", QueueKey(1, 0))
OTHER = LeaseKey("g", QueueKey(1, 1))
FIRST = 7 << 32


# ---- rows of the state -----------------------------------------------------------------------------


def test_an_entry_without_a_case_is_not_passed_over_in_silence() -> None:
    state = State()
    with pytest.raises(AssertionError):
        state.apply(cast("Fact", CommittedOffset(1, 0, 3)), 1)
    assert state.position == 0


def test_every_kind_of_row_comes_back_from_a_checkpoint() -> None:
    state, queue = State(), QueueKey(1, 0)
    facts: list[Fact] = [
        TopicSet(Topic("t", 1, 4, 4)),
        GroupStarted("g", 1, (CommittedOffset(1, 0, 3),), 1234),
        OffsetsCommitted("g", (CommittedOffset(1, 1, 5),)),
        OffsetsCommitted("g", (CommittedOffset(1, 1, 4),), forced=True),
        GroupAgreed("g", GroupConfig((("t", "red"),), "averagely", 5)),
        PermissionSet(4),
        TermBegun(9, "an identity"),
    ]
    state.apply(BatchApplied(queue, QueueEnd(2, 17), BatchLocation(1, 0, 0, 17), 77, 5, 5, 9), 100)
    for position, fact in enumerate(facts, 101):
        state.apply(fact, position, 5_000 + position)
    kinds = {row[0] for row, _ in changed_rows(state)}
    of_the_log = {"permission", "term", "terms", "log-id"}
    of_groups = {"offset", "started", "agreement", "used"}
    assert kinds == {"topic", "end", "producer"} | of_groups | of_the_log
    again = State()
    for row, value in changed_rows(state):
        load_row(again, *(msgspec.msgpack.decode(msgspec.msgpack.encode(part)) for part in (row, value)))
    assert (again.topics, again.ends, again.committed) == (state.topics, state.ends, state.committed)
    assert (again.started, again.permission, again.term) == (state.started, 4, 9)
    assert again.agreements == state.agreements == {"g": GroupConfig((("t", "red"),), "averagely", 5)}
    assert again.used == state.used == {"g": 5_105}
    assert again.terms == state.terms == [TermStart(9, 106)]
    assert again.producers.find((77, 1, 9), 5) == BatchLocation(1, 0, 0, 17)


def test_a_group_without_members_agrees_on_nothing() -> None:
    state, agreement = State(), GroupConfig((("t", ""),), "averagely")
    state.apply(GroupAgreed("g", agreement), 1)
    state.saved()
    state.apply(GroupAgreed("g", None), 2)
    assert state.agreements == {}
    assert changed_rows(state) == [(("agreement", "g"), None)]


def test_nothing_is_left_of_a_group_that_is_deleted() -> None:
    state = State()
    facts: list[Fact] = [
        TopicSet(Topic("t", 1, 4, 4)),
        TopicSet(Topic("%RETRY%g", 2, 1, 1)),
        TopicSet(Topic("%DLQ%g", 3, 1, 1)),
        GroupStarted("g", 1, (CommittedOffset(1, 0, 3),), 1234),
        GroupStarted("h", 1, (CommittedOffset(1, 0, 4),), 1234),
        OffsetsCommitted("g", (CommittedOffset(1, 1, 4),), forced=True),
        OffsetsCommitted("g", (CommittedOffset(2, 0, 0),)),
        GroupAgreed("g", GroupConfig((("t", "red"),), "averagely")),
    ]
    for position, fact in enumerate(facts, 1):
        state.apply(fact, position, 5_000)
    assert state.groups() == {"g", "h"}
    state.saved()
    made = state.made
    state.apply(GroupDeleted("g", ("%RETRY%g",)), 20, 6_000)
    assert state.groups() == set(state.used) == {"h"}
    assert {"t", "%DLQ%g"} == set(state.topics)
    assert state.made == made + 1  # name servers hear of it
    gone = {row for row, value in changed_rows(state) if value is None}
    assert gone >= {
        ("used", "g"),
        ("agreement", "g"),
        ("started", "g", 1),
        ("topic", "%RETRY%g"),
        ("offset", "g", 1, 0),
        ("offset", "g", 1, 1),
        ("offset", "g", 2, 0),
    }
    assert not [row for row in gone if "h" in row]


def test_a_group_is_used_by_what_its_members_do_and_by_no_time_that_goes_back() -> None:
    state = State()
    state.apply(OffsetsCommitted("g", ()), 1)
    assert state.used == {}  # when that was is not known
    state.apply(GroupAgreed("g", None), 2, 100)
    state.apply(OffsetsCommitted("g", ()), 3, 300)
    state.apply(GroupStarted("g", 1, ()), 4, 200)
    assert state.used == {"g": 300}


def test_when_an_idle_group_expires() -> None:
    day_ms, state = 24 * 3600 * 1000, State()
    week, hour = GroupExpiry(7 * day_ms), GroupExpiry(day_ms // 24)
    assert (week.notice_ms, hour.notice_ms, GroupExpiry(30 * day_ms).notice_ms) == (
        7 * day_ms // 10,
        day_ms // 240,
        day_ms,
    )
    assert week.expires_ms(state, "g", has_members=False) is None  # nobody knows since when
    state.apply(OffsetsCommitted("g", ()), 1, 1_000)
    assert week.expires_ms(state, "g", has_members=False) == 1_000 + 7 * day_ms
    assert week.expires_ms(state, "g", has_members=True) is None
    long_offline = GroupExpiry(7 * day_ms, since_ms=30 * day_ms)  # nobody could use a group meanwhile
    assert long_offline.expires_ms(state, "g", has_members=False) == 30 * day_ms + long_offline.notice_ms
    assert GroupExpiry().expires_ms(state, "g", has_members=False) is None
    state.apply(GroupAgreed("g", GroupConfig((), "averagely")), 2, 2_000)
    assert week.expires_ms(state, "g", has_members=False) is None  # it had members before this start
    state.apply(GroupAgreed("g", None), 3, 3_000)
    assert week.expires_ms(state, "g", has_members=False) == 3_000 + 7 * day_ms


def test_a_row_of_an_unknown_kind_is_rejected_and_changes_nothing() -> None:
    state = State()
    state.apply(TermBegun(5), 1)
    with pytest.raises(StoreError, match="'calendar'"):
        load_row(state, ["calendar", "orders", 7], {"days": 3})
    assert state.term == 5
    state.changed.add(("calendar", "orders"))
    with pytest.raises(KeyError):
        changed_rows(state)
