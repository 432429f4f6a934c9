"""The decisions of the broker: leases, groups and waiters, as tables and as properties."""

from __future__ import annotations

from typing import cast

import pytest

from minimq_broker.groups.groups import GroupConfig
from minimq_broker.groups.idle_groups import GroupExpiry
from minimq_broker.state.facts import CommittedOffset, Fact, GroupAgreed, GroupStarted, OffsetsCommitted, TermBegun
from minimq_broker.state.state import State
from minimq_broker.state.state_rows import changed_rows, load_row
from minimq_common.errors import StoreError

# ---- rows of the state -----------------------------------------------------------------------------


def test_an_entry_without_a_case_is_not_passed_over_in_silence() -> None:
    state = State()
    with pytest.raises(AssertionError):
        state.apply(cast("Fact", CommittedOffset(1, 0, 3)), 1)
    assert state.position == 0


def test_a_group_without_members_agrees_on_nothing() -> None:
    state, agreement = State(), GroupConfig((("t", ""),), "averagely")
    state.apply(GroupAgreed("g", agreement), 1)
    state.saved()
    state.apply(GroupAgreed("g", None), 2)
    assert state.agreements == {}
    assert changed_rows(state) == [(("agreement", "g"), None)]


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
    week = GroupExpiry(7 * day_ms)
    assert week.expires_ms(state, "g", has_members=False) is None  # nobody knows since when
    state.apply(OffsetsCommitted("g", ()), 1, 1_000)
    assert week.expires_ms(state, "g", has_members=False) == 1_000 + 7 * day_ms
    assert week.expires_ms(state, "g", has_members=True) is None
    long_offline = GroupExpiry(7 * day_ms, since_ms=30 * day_ms)  # nobody could use a group meanwhile
    assert long_offline.expires_ms(state, "g", has_members=False) == 30 * day_ms + 7 * day_ms // 10
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
