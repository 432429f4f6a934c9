"""The plan of a change of a topic names its readers, and asks only the brokers that carry it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from minimq.admin.descriptions import TopicDescription, TopicSettings
from minimq.admin.groups import GroupOperations
from minimq.admin.views import PlanRow
from minimq_common.model import Permission
from minimq_proto.v1.broker_pb2 import DescribeGroupResponse, GroupQueue, ListGroupsResponse

NOW = datetime(2026, 1, 31, tzinfo=UTC)
READS = {"billing": "orders", "audit": "payments"}


class TwoBrokers:
    """Both know the groups; records which of them is asked."""

    def __init__(self) -> None:
        self.asked = set[str]()

    def find(self, **_: object) -> dict[str, str]:
        return {"broker-a": "a:1", "broker-b": "b:1"}

    def call_all(
        self, addresses: Mapping[str, str], *_: object
    ) -> tuple[dict[str, ListGroupsResponse], dict[str, Any]]:
        self.asked.update(addresses)
        return {broker: ListGroupsResponse(groups=READS) for broker in addresses}, {}

    def call_about(self, names: list[str], addresses: Mapping[str, str], *_: object) -> dict[str, Any]:
        self.asked.update(addresses)
        return {name: ({broker: described(READS[name]) for broker in addresses}, {}) for name in names}


def described(topic: str) -> DescribeGroupResponse:
    queue = GroupQueue(topic=topic, max_offset=5, committed_offset=3, oldest_unread_ms=1)
    return DescribeGroupResponse(client_ids=["m"], queues=[queue])


def test_only_the_brokers_of_the_topic_are_asked_and_only_its_groups_are_named() -> None:
    settings = TopicSettings("broker-a", 1, 1, Permission.READ_WRITE, NOW)
    brokers: Any = TwoBrokers()
    rows = GroupOperations(brokers)._reader_rows(TopicDescription("orders", (settings,), ()))
    assert rows == [PlanRow("unread by group billing", 2, None, "1 member connected")]
    assert brokers.asked == {"broker-a"}
