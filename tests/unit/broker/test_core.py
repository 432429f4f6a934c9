"""The decisions of the broker: leases, groups and waiters, as tables and as properties."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from minimq_broker.core.facts import (
    CommittedOffset,
    Fact,
    GroupAgreed,
    GroupStarted,
    OffsetsCommitted,
    PermissionSet,
    TermBegun,
    Topic,
    TopicSet,
)
from minimq_broker.core.groups import Agreement
from minimq_broker.core.leases import LeaseKey
from minimq_broker.core.long_poll import LongPoll
from minimq_broker.core.producers import Place
from minimq_broker.core.state import BatchApplied, QueueEnd, QueueKey, State
from minimq_broker.core.term_history import LogPlace, TermStart
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
        GroupAgreed("g", Agreement((("t", "red"),), "averagely", 5, by_server=True)),
        PermissionSet(4),
        TermBegun(9, "an identity"),
    ]
    state.apply(BatchApplied(queue, QueueEnd(2, 17), Place(1, 0, 0, 17), 77, 5, 5), 100)
    for position, fact in enumerate(facts, 101):
        state.apply(fact, position)
    kinds = {row[0] for row, _ in state.changes()}
    of_the_log = {"permission", "term", "terms", "log-id"}
    assert kinds == {"topic", "end", "offset", "moved", "forced", "started", "agreement", "producer"} | of_the_log
    again = State()
    for row, value in state.changes():
        again.load(*(msgspec.msgpack.decode(msgspec.msgpack.encode(part)) for part in (row, value)))
    assert (again.topics, again.ends, again.committed) == (state.topics, state.ends, state.committed)
    assert again.forced == state.forced == {("g", 1, 1): LogPlace(0, 103)}
    assert again.moved == state.moved == {("g", 1, 0): LogPlace(0, 101), ("g", 1, 1): LogPlace(0, 103)}
    assert (again.started, again.permission, again.term) == (state.started, 4, 9)
    assert again.agreements == state.agreements == {"g": Agreement((("t", "red"),), "averagely", 5, by_server=True)}
    assert again.terms == state.terms == [TermStart(9, 106)]
    assert again.producers.find(77, 5) == Place(1, 0, 0, 17)


def test_a_group_without_members_agrees_on_nothing() -> None:
    state, agreement = State(), Agreement((("t", ""),), "averagely")
    state.apply(GroupAgreed("g", agreement), 1)
    state.saved()
    state.apply(GroupAgreed("g", None), 2)
    assert state.agreements == {}
    assert state.changes() == [(("agreement", "g"), None)]


def test_a_row_of_an_unknown_kind_is_refused_and_changes_nothing() -> None:
    state = State()
    state.apply(TermBegun(5), 1)
    with pytest.raises(StoreError, match="'calendar'"):
        state.load(["calendar", "orders", 7], {"days": 3})
    assert state.term == 5
    state.changed.add(("calendar", "orders"))
    with pytest.raises(KeyError):
        state.changes()


# ---- waiters ------------------------------------------------------------------------------------


def test_an_arrival_wakes_the_waiters_of_its_queue_once() -> None:
    waiting: LongPoll[str] = LongPoll()
    red, green = QueueKey(1, 0), QueueKey(1, 1)
    for queue, waiter in ((red, "a"), (red, "b"), (green, "c"), (red, "a")):
        waiting.add(queue, waiter)

    assert len(waiting) == 3
    assert waiting.arrived(red) == {"a", "b"}
    assert waiting.arrived(red) == set()
    assert waiting.arrived(QueueKey(9, 9)) == set()
    assert len(waiting) == 1
    waiting.remove(green, "c")
    waiting.remove(green, "c")
    waiting.remove(red, "a")
    assert len(waiting) == 0


def test_all_are_woken_at_once() -> None:
    waiting: LongPoll[str] = LongPoll()
    assert waiting.all() == set()
    waiting.add(QueueKey(1, 0), "a")
    waiting.add(QueueKey(1, 1), "a")
    waiting.add(QueueKey(2, 0), "b")
    assert waiting.all() == {"a", "b"}
    assert len(waiting) == 0
