"""The sentences about a cluster that tell an operator what to look at."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from minimq.admin.activity import ActivityReader
from minimq.admin.descriptions import BrokerStatus, TopicDescription, topic_from_wire
from minimq.admin.group_descriptions import GroupDescription, group_from_wire
from minimq_proto.v1 import broker_pb2

LOST = "broker 127.0.0.1:2 is not reached: nothing listens there"


def group(
    name: str, lag: int = 0, members: str = "", *, sparse: bool = False, published: bool = False, **unanswered: str
) -> GroupDescription:
    queue = broker_pb2.GroupQueue(topic="orders", max_offset=lag, sparse=sparse)
    answer = broker_pb2.DescribeGroupResponse(client_ids=members.split(), queues=[queue], published=published)
    return group_from_wire(name, {"a": answer}, unanswered, datetime(2026, 1, 31, tzinfo=UTC))


class Cluster:
    """A cluster with some topics and one group. `ends` sets how many messages each broker has stored and read."""

    def __init__(self, *topics: str) -> None:
        self.topics = topics
        self.ends: dict[str, int] = {}
        self.asked: list[int] = []

    def broker_status(self) -> list[BrokerStatus]:
        return []

    def list_topics(self) -> list[str]:
        return list(self.topics)

    def describe_topics(self, names: Sequence[str]) -> list[TopicDescription]:
        self.asked.append(len(names))
        answers = {
            broker: broker_pb2.DescribeTopicResponse(queues=[broker_pb2.QueueStatus(max_offset=end)])
            for broker, end in self.ends.items()
        }
        unanswered = {} if answers else {"broker-a": LOST}
        return [topic_from_wire(name, answers, (), unanswered) for name in names]

    def describe_groups(self) -> list[GroupDescription]:
        answers = {
            broker: broker_pb2.DescribeGroupResponse(
                queues=[broker_pb2.GroupQueue(topic="orders", max_offset=end, committed_offset=end)]
            )
            for broker, end in self.ends.items()
        }
        return [group_from_wire("g", answers, {}, datetime(2026, 1, 31, tzinfo=UTC))]


def test_a_broker_that_comes_back_brings_no_rate_of_messages_that_nobody_stored() -> None:
    cluster, now = Cluster("orders"), [0.0]
    source: Any = cluster
    reader = ActivityReader(source, lambda: now[0])
    rates: list[tuple[float | None, float | None]] = []
    for ends in (
        {"broker-a": 1_000, "broker-b": 5_000},
        {"broker-a": 1_020, "broker-b": 5_010},
        {"broker-a": 1_040},  # the other is killed
        {"broker-a": 1_060},
        {"broker-a": 1_080, "broker-b": 5_020},
        {"broker-a": 1_100, "broker-b": 5_030},
    ):
        cluster.ends = ends
        activity = reader.read()
        rates.append((activity.topics[0].in_per_s, activity.groups[0].out_per_s))
        now[0] += 1
    assert rates == [(rate, rate) for rate in (None, 30, 20, 20, 20 + 10 / 3, 30)]


def test_a_silent_broker_costs_each_read_one_round_of_calls() -> None:
    cluster = Cluster(*(f"t{number:02d}" for number in range(50)))
    source: Any = cluster
    reader = ActivityReader(source)
    assert (reader.read().topics, cluster.asked) == ((), [16])
    cluster.ends = {"broker-a": 1}
    while len(reader.read().topics) < 50:
        assert max(cluster.asked) <= 32
    assert len(cluster.asked) < 6
