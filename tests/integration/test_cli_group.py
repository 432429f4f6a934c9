"""`minimq group`, as a process of its own, against real servers and members that are processes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from minimq.admin.admin import Admin
from minimq.admin.group_descriptions import (
    GroupDescription,
    GroupMemberDescription,
    GroupQueueDescription,
    group_from_wire,
)
from minimq.admin.groups import describe_lines
from minimq.admin.views import View
from minimq.consumer import WorkQueueConsumer
from minimq.consuming.queue_finder import QueueFinder
from minimq.local.local_cluster import LocalCluster
from minimq.producer import Producer
from minimq_cli.commands import show
from minimq_common.model import Message, MessageQueue
from minimq_proto.v1 import broker_pb2, work_queues_pb2
from support.command import Minimq
from support.waiting import wait_until

pytestmark = pytest.mark.system

TIMEOUT_S = 40.0


@pytest.fixture(scope="session")
def minimq(cluster: LocalCluster) -> Minimq:
    return Minimq(cluster.nameserver)


@pytest.fixture
def members(minimq: Minimq, admin: Admin, topic: str, group: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that read the topic and share its queues evenly."""
    with (
        minimq.running("consume", topic, "--group", group) as one,
        minimq.running("consume", topic, "--group", group) as two,
    ):
        wait_until(lambda: group in admin.list_groups(), TIMEOUT_S)
        wait_until(lambda: shares(admin, group) == [4, 4], TIMEOUT_S, what="even shares")
        yield [one, two]


def shares(admin: Admin, group: str) -> list[int]:
    return [len(member.queues) for member in admin.describe_group(group).members]


def end(members: list[subprocess.Popen[bytes]]) -> None:
    for member in members:
        member.send_signal(signal.SIGINT)
    for member in members:
        assert member.communicate(timeout=30) is not None
        assert member.returncode == 0


# ---- Real groups --------------------------------------------------------------------------------


def test_a_group_with_two_members_is_shown_as_a_table_and_as_json(
    minimq: Minimq, members: list[subprocess.Popen[bytes]], topic: str, group: str
) -> None:
    found = minimq.json("group", "describe", group)
    assert (found["group"], found["strategy"], found["lag"], found["unanswered"]) == (group, "averagely", 0, {})
    assert [(member["queues"], member["seen_by"]) for member in found["members"]] == [(4, ["broker-a", "broker-b"])] * 2
    ids = [member["client_id"] for member in found["members"]]
    assert {name.split("-")[-2] for name in ids} == {str(member.pid) for member in members}
    assert {(item["topic"], item["owner"] in ids, item["waiting"] == []) for item in found["queues"]} == {
        (topic, True, True)
    }
    assert [(item["broker"], item["queue"]) for item in found["queues"]] == [
        (broker, number) for broker in ("broker-a", "broker-b") for number in range(4)
    ]
    text = minimq("group", "describe", group)
    assert text.splitlines()[2].split() == [group, "2", "averagely", "0", "-"]
    for number, name in enumerate(ids, 1):
        assert re.search(rf"^#{number} +{name} +4 +0 +-$", text, re.MULTILINE)
    assert sum(" broker-" in line for line in text.splitlines()) == 8


def test_a_group_that_takes_messages_one_by_one_is_shown_and_reset(
    minimq: Minimq, cluster: LocalCluster, admin: Admin, topic: str, group: str
) -> None:
    queue, *_ = sorted(admin.route(topic).read_queues())
    with Producer(minimq.nameserver) as producer:
        producer.send_many([Message(topic, b"x")] * 20, queue=queue)
    with WorkQueueConsumer(cluster.nameserver, group=group, prefetch_messages=0) as consumer:
        consumer.subscribe(topic)
        messages = consumer.receive(10)
        consumer.ack(messages[3:5])
        consumer.release(messages[0], delay_s=600)
        [line, *_] = [line for line in minimq("group", "describe", group).splitlines() if " broker-a" in line]
        assert line.split()[1:6] == ["broker-a", "0", "-", "0", "18"]
        assert line.split()[-2:] == ["7", "1"]  # in flight, returned
        described = minimq.json("group", "describe", group)
        [popped] = [item["work_queue"] for item in described["queues"] if item["work_queue"] is not None]
        assert (popped["in_flight"], popped["returned"], popped["settled_ahead"]) == (7, 1, 2)
        assert (described["lag"], described["in_flight"], described["strategy"]) == (18, 7, None)
        [listed] = [row for row in minimq.json("group", "list") if row["group"] == group]
        assert listed["lag"] == 18
        said = minimq("group", "reset-offset", group, topic, "--to", "earliest", status=1)
        assert said.startswith("error: ")
        assert "connected" in said
        assert admin.describe_group(group).in_flight == 7
    rows = minimq.json("group", "reset-offset", group, topic, "--to", "5", "--queue", "broker-a:0")
    assert [(row["now"], row["then"]) for row in rows] == [(0, 5)]
    described = minimq.json("group", "describe", group)
    assert (described["lag"], described["in_flight"]) == (15, 0)


@pytest.mark.fault
def test_a_broker_that_hangs_is_named_on_stderr_and_the_rest_is_shown() -> None:
    with LocalCluster(brokers=2) as own, Admin(own.nameserver) as admin:
        admin.create_topic("orders", 2)
        with Producer(own.nameserver) as producer:
            producer.send(Message("orders", b"here"), queue=MessageQueue("orders", "broker-a", 0))
        minimq = Minimq(own.nameserver)
        minimq("group", "reset-offset", "billing", "orders", "--to", "earliest", "--new")
        own.server("broker-b").pause()
        for arguments, shown in (
            (("group", "describe", "billing"), b"Group    Members"),
            (("group", "list"), b"Group"),
            (("topic", "describe", "orders"), b"orders: 1 message\n"),
        ):
            with minimq.running(*arguments) as showing:
                output, said = showing.communicate(timeout=30)
            assert showing.returncode == 0
            assert output.startswith(shown)
            assert said.startswith(b"broker-b: does not answer, its queues are not counted (")
            assert said.count(b"\n") == 1
        [row] = minimq.json("group", "list")
        assert list(row["unanswered"]) == ["broker-b"]
        assert list(minimq.json("topic", "describe", "orders")["unanswered"]) == ["broker-b"]
        with minimq.running("consume", "orders", "--group", "audit", "--exit-at-end") as consuming:
            output, said = consuming.communicate(timeout=60)
        assert (output, consuming.returncode) == (b"here\n", 1)
        assert b"broker-b: does not answer, its queues are not read (" in said


def test_progress_that_a_spark_query_publishes_is_shown_as_such(
    minimq: Minimq, cluster: LocalCluster, topic: str, group: str
) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    with Producer(cluster.nameserver) as producer, closing(QueueFinder(cluster.nameserver)) as finder:
        producer.send_many([Message(topic, b"x")] * 5, queue=queue)
        assert finder.publish(group, {queue: 2}) == {}
    assert minimq("group", "describe", group).splitlines()[2].split()[:3] == [group, "published", "3"]
    described = minimq.json("group", "describe", group)
    assert (described["published"], described["lag_unit"]) == (True, "offset")
    [row] = [row for row in minimq.json("group", "list") if row["group"] == group]
    assert row["published"] is True
    assert re.search(rf"{group} +published", minimq("group", "list"))
    said = minimq("group", "reset-offset", group, topic, "--to", "earliest", status=1)
    assert "start the query with startingOffsets and another checkpointLocation" in said


# ---- How it is shown ----------------------------------------------------------------------------


def queue(number: int, topic: str = "orders", **fields: Any) -> GroupQueueDescription:
    plain: dict[str, Any] = {
        "owner": None,
        "epoch": 0,
        "holder": None,
        "held_for_s": 0.0,
        "waiting": (),
        "min_offset": 0,
        "max_offset": 123_456_789,
        "committed_offset": 123_456_789,
        "oldest_unread_at": None,
        "lag_s": 0.0,
    }
    return GroupQueueDescription(queue=MessageQueue(topic, "broker-a", number), **{**plain, **fields})


def described(*queues: GroupQueueDescription, clients: tuple[str, ...], **fields: Any) -> GroupDescription:
    members = tuple(
        GroupMemberDescription(client, ("broker-a",), tuple(item for item in queues if item.owner == client))
        for client in clients
    )
    plain: dict[str, Any] = {"strategy": "averagely", "handover_timeout_s": 0.0, "retry_queues": ()}
    plain |= {"deciding_broker": "broker-a", "brokers": ("broker-a",), "unanswered": {}}
    return GroupDescription(group="billing", members=members, queues=queues, **{**plain, **fields})


def shown(found: GroupDescription, *, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines on a terminal of 80 columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        patch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        show(View(json={}, lines=describe_lines(found)), "table")
    return capsys.readouterr().out.splitlines()


def test_the_message_that_blocks_a_work_queue_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    popped = work_queues_pb2.PoppedQueue(topic="flights", returned=3, blocking_offset=7)
    answer = broker_pb2.DescribeGroupResponse(
        queues=[broker_pb2.GroupQueue(topic="flights", max_offset=9, committed_offset=7)]
    )
    taken = {"broker-a": work_queues_pb2.DescribeWorkQueuesResponse(queues=[popped])}
    found = group_from_wire("billing", {"broker-a": answer}, {}, datetime.now(UTC), taken=taken)
    lines = shown(found, capsys=capsys)
    assert any(line.split()[-3:] == ["3", "offset", "7"] for line in lines), lines
