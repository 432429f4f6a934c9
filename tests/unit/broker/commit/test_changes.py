from __future__ import annotations

import pytest

from minimq_broker.commit.changes import AdminChange, change_of
from minimq_broker.state.facts import (
    CommittedOffset,
    Fact,
    GroupDeleted,
    GroupStarted,
    OffsetsCommitted,
    PermissionSet,
    TermBegun,
    Topic,
    TopicDeleted,
    TopicSet,
)
from minimq_broker.state.state import State
from minimq_common.model import Permission

ORDERS = Topic("orders", 10, 8, 8)


@pytest.fixture
def state() -> State:
    state = State()
    state.apply(TopicSet(ORDERS), 11, 0)
    state.apply(OffsetsCommitted("billing", (CommittedOffset(10, 0, 17),)), 12, 0)
    return state


@pytest.mark.parametrize(
    ("fact", "change"),
    [
        (
            TopicSet(Topic("new", 20, 2, 1, Permission.READ)),
            AdminChange("topic created", "new", "-", "2 read queues, 1 write queue, read"),
        ),
        (
            TopicSet(Topic("orders", 10, 16, 8)),
            AdminChange(
                "topic changed",
                "orders",
                "8 read queues, 8 write queues, read-write",
                "16 read queues, 8 write queues, read-write",
            ),
        ),
        (TopicDeleted("orders"), AdminChange("topic deleted", "orders", "8 read queues, 8 write queues, read-write")),
        (PermissionSet(Permission.READ), AdminChange("broker permission set", "-", "read-write", "read")),
        (
            OffsetsCommitted("billing", (CommittedOffset(10, 0, 3), CommittedOffset(10, 1, 4)), forced=True),
            AdminChange("offsets set", "billing", "orders 0:17 1:-", "orders 0:3 1:4"),
        ),
        (
            OffsetsCommitted("new", tuple(CommittedOffset(10, number, 0) for number in range(9)), forced=True),
            AdminChange(
                "offsets set",
                "new",
                "orders 0:- 1:- 2:- 3:- 4:- 5:- 6:- 7:- and 1 more",
                "orders 0:0 1:0 2:0 3:0 4:0 5:0 6:0 7:0 and 1 more",
            ),
        ),
        (
            GroupDeleted("billing", ("%DLQ%billing",)),
            AdminChange("group deleted", "billing", "offsets of 1 queue, %DLQ%billing"),
        ),
        (OffsetsCommitted("billing", (CommittedOffset(10, 0, 18),)), None),
        (GroupStarted("billing", 10, ()), None),
        (TermBegun(2), None),
    ],
)
def test_what_administrators_change_is_told_with_the_value_before_and_after(
    state: State, fact: Fact, change: AdminChange | None
) -> None:
    assert change_of(state, fact) == change
