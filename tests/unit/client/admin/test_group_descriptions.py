"""The sum of the answers of several brokers: members, lag in messages and in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from minimq.admin.group_descriptions import GroupDescription, group_from_wire
from minimq_proto.v1 import broker_pb2
from support.cases import for_each

NOW = datetime(2026, 1, 31, 8, tzinfo=UTC)


def ms_ago(seconds: float) -> int:
    return round((NOW - timedelta(seconds=seconds)).timestamp() * 1000)


def queue(
    queue_id: int, owner: str = "", unread_for_s: float | None = None, *, topic: str = "orders", **fields: Any
) -> broker_pb2.GroupQueue:
    oldest = 0 if unread_for_s is None else ms_ago(unread_for_s)
    return broker_pb2.GroupQueue(topic=topic, queue_id=queue_id, owner=owner, oldest_unread_ms=oldest, **fields)


def answer(members: str, *queues: broker_pb2.GroupQueue, **fields: Any) -> broker_pb2.DescribeGroupResponse:
    return broker_pb2.DescribeGroupResponse(client_ids=members.split(), queues=queues, **fields)


def describe(**answers: broker_pb2.DescribeGroupResponse) -> GroupDescription:
    return group_from_wire("billing", answers, {}, NOW)


@for_each(
    ("fields", "lag"),
    [
        ({"max_offset": 10, "committed_offset": 4}, 6),
        ({"max_offset": 10, "committed_offset": 10}, 0),
        ({"max_offset": 10, "committed_offset": 0}, 10),
        ({"max_offset": 10}, 10),  # not begun: all of it is unread
        ({"min_offset": 7, "max_offset": 10}, 3),
        ({"min_offset": 7, "max_offset": 10, "committed_offset": 4}, 3),  # what was deleted cannot be read any more
        ({"min_offset": 10, "max_offset": 10, "committed_offset": 4}, 0),
    ],
)
def test_lag_counts_what_is_stored_and_not_committed(fields: dict[str, Any], lag: int) -> None:
    [item] = describe(a=answer("", queue(0, **fields))).queues
    assert item.lag == lag
    assert item.committed_offset == fields.get("committed_offset")


def test_messages_that_wait_for_another_try_are_counted_apart() -> None:
    found = describe(
        a=answer(
            "m",
            queue(0, "m", 5, max_offset=1),
            queue(3, "m", 7200, topic="%RETRY%billing", max_offset=4, committed_offset=1),
            queue(3, "m", 60, topic="%RETRY%other", max_offset=1),
        )
    )
    assert (found.lag, found.lag_s, found.retrying) == (2, 60, 3)
    assert [item.queue.topic for item in found.queues] == ["%RETRY%other", "orders"]
    assert [(member.lag, len(member.queues)) for member in found.members] == [(2, 2)]


def test_members_are_all_that_any_broker_sees_or_that_own_a_queue() -> None:
    found = describe(a=answer("m1 m2", queue(0, "m1"), queue(1, "m3")), b=answer("m1", queue(0, "m1")))
    assert [(member.client_id, member.seen_by, len(member.queues)) for member in found.members] == [
        ("m1", ("a", "b"), 2),
        ("m2", ("a",), 0),
        ("m3", (), 1),
    ]
    assert not found.is_agreed
    assert describe(a=answer("m1", queue(0)), b=answer("m1", queue(0)), c=answer("")).is_agreed


def test_the_lowest_named_broker_with_a_topic_decides() -> None:
    found = describe(
        c=answer("m", queue(0), allocation="averagely", handover_timeout_ms=50_000),
        b=answer("m", queue(0), allocation="averagely", handover_timeout_ms=50_000),
        a=answer(""),
    )
    assert (found.deciding_broker, found.strategy, found.handover_timeout_s) == ("b", "averagely", 50)
    assert found.brokers == ("a", "b", "c")
    assert [item.queue.broker_name for item in found.queues] == ["b", "c"]
