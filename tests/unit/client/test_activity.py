"""The sentences about a cluster that tell an operator what to look at."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from minimq.administration.activity import ActivityProblem, problems_of
from minimq.administration.descriptions import BrokerStatus
from minimq.administration.group_descriptions import GroupDescription, group_from_wire
from minimq_proto.v1 import broker_pb2

LOST = "broker 127.0.0.1:2 is not reached: nothing listens there"
BROKE = "broker 127.0.0.1:2 is not reached: the connection broke"


def replica(broker: str, broker_id: int = 0, error: str | None = None) -> BrokerStatus:
    return BrokerStatus("minimq", broker, broker_id, "127.0.0.1:2", report=None, error=error)


def group(name: str, lag: int = 0, members: str = "", **unanswered: str) -> GroupDescription:
    queue = broker_pb2.GroupQueue(topic="orders", max_offset=lag)
    answer = broker_pb2.DescribeGroupResponse(client_ids=members.split(), queues=[queue])
    return group_from_wire(name, {"a": answer}, unanswered, datetime(2026, 1, 31, tzinfo=UTC))


@pytest.mark.parametrize(
    ("brokers", "said"),
    [
        # Its status says so already.
        ([replica("a"), replica("b", error=LOST)], [f"broker b does not answer: {LOST}"]),
        # It went between two calls, or the visitor may not describe the cluster.
        ([replica("a"), replica("b")], [f"broker b does not answer: {BROKE}"]),
        ([], [f"broker b does not answer: {BROKE}"]),
        # A slave that is silent is not why its master did not answer for the groups.
        (
            [replica("b"), replica("b", 1, LOST)],
            [f"broker b, replica 1, does not answer: {LOST}", f"broker b does not answer: {BROKE}"],
        ),
        # The only replica that was left is silent.
        ([replica("b", 1, LOST)], [f"broker b, replica 1, does not answer: {LOST}"]),
    ],
)
def test_a_broker_that_does_not_answer_is_told_of_once_however_many_groups_miss_it(
    brokers: list[BrokerStatus], said: list[str]
) -> None:
    groups = [group("audit", b=BROKE), group("billing", b=BROKE), group("search", b=LOST)]
    assert [each.text for each in problems_of(brokers, groups)] == said


def test_a_problem_names_the_group_that_it_is_about() -> None:
    groups = [group("audit", lag=1), group("billing", lag=1_200), group("read", lag=5, members="m"), group("idle")]
    assert problems_of([replica("a", error=LOST)], groups) == [
        ActivityProblem(f"broker a does not answer: {LOST}"),
        ActivityProblem("group audit has no members, and a lag of 1 message", "audit"),
        ActivityProblem("group billing has no members, and a lag of 1,200 messages", "billing"),
    ]
