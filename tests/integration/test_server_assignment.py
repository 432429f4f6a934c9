"""The deciding broker divides the queues of all brokers for the members of a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster
from minimq.rebalance import allocation
from minimq_common.errors import GroupConflict, InvalidArgument, MiniMQError, Unavailable
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2
from support.raw_member import RawMember
from support.waiting import wait_until

Connect = Callable[[int, str], RawMember]


@pytest.fixture
def group(new_name: Callable[[], str]) -> str:
    return new_name()


@pytest.fixture
def member(cluster: LocalCluster) -> Iterator[Connect]:
    """Connect members to the brokers by their number."""
    with ExitStack() as members:
        yield lambda broker, client_id: members.enter_context(RawMember(cluster.brokers[broker].address, client_id))


def ask(member: RawMember, group: str, topic: str) -> tuple[int, list[MessageQueue]]:
    """Return the version of the member list and the share."""
    request = broker_pb2.QueryAssignmentRequest(group=group, client_id=member.client_id, topic=topic)
    answer = member.call("QueryAssignment", request)
    return answer.version, [MessageQueue(item.topic, item.broker_name, item.queue_id) for item in answer.queues]


def all_queues(topic: str) -> list[MessageQueue]:
    return [MessageQueue(topic, broker, number) for broker in ("broker-a", "broker-b") for number in range(4)]


@pytest.mark.parametrize("strategy", ["averagely", "averagely_by_circle"])
def test_members_get_what_they_would_compute_themselves(member: Connect, topic: str, group: str, strategy: str) -> None:
    members = [member(0, f"{group}-{number}") for number in range(3)]
    names = [one.client_id for one in members]
    for one in members:
        one.say(join=broker_pb2.JoinGroup(group=group, topics=[topic], allocation=strategy))
    version = 0
    for one in members:
        while list((told := one.hear("members").members).client_ids) != names:
            pass
        version = told.version

    for one in members:
        share = allocation(strategy).allocate(group, one.client_id, all_queues(topic), names)
        assert ask(one, group, topic) == (version, share)


@pytest.mark.parametrize(
    ("strategy", "asked_by", "topic_asked", "error", "text"),
    [
        ("sticky", "member", "topic", InvalidArgument, "by 'sticky': brokers know averagely, averagely_by_circle"),
        ("averagely", "stranger", "topic", InvalidArgument, "stranger.*join it before"),
        ("averagely", "member", "other", InvalidArgument, "not to 'other'"),
    ],
)
def test_what_cannot_be_answered(  # noqa: PLR0913 - the columns of the table
    member: Connect,
    topic: str,
    group: str,
    *,
    strategy: str,
    asked_by: str,
    topic_asked: str,
    error: type[MiniMQError],
    text: str,
) -> None:
    one, stranger = member(0, f"{group}-member"), member(0, f"{group}-stranger")
    one.say(join=broker_pb2.JoinGroup(group=group, topics=[topic], allocation=strategy))
    one.hear("members")
    with pytest.raises(error, match=text):
        ask(one if asked_by == "member" else stranger, group, topic if topic_asked == "topic" else "other")


def test_a_broker_that_does_not_decide_names_the_one_that_does(member: Connect, topic: str, group: str) -> None:
    one = member(1, group)
    one.join(group, topic)
    one.hear("members")
    with pytest.raises(GroupConflict, match=r"broker broker-a decides .* not broker-b"):
        ask(one, group, topic)


def test_a_topic_without_a_route_has_nothing_to_share(member: Connect, group: str) -> None:
    one = member(0, group)
    one.join(group, "no-such-topic")
    version = one.hear("members").members.version
    assert ask(one, group, "no-such-topic") == (version, [])


def test_another_broker_decides_when_the_first_is_gone_and_routes_outlive_their_name_server(tmp_path: Path) -> None:
    with LocalCluster(brokers=2, data_dir=tmp_path) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=1)
        with RawMember(cluster.brokers[1].address, "m") as one:
            one.join("g", "t")
            one.hear("members")
            with pytest.raises(GroupConflict):
                ask(one, "g", "t")
            cluster.brokers[0].kill()

            def answered() -> list[MessageQueue]:
                try:
                    return ask(one, "g", "t")[1]
                except GroupConflict:
                    return []

            mine = [MessageQueue("t", "broker-b", 0)]
            assert wait_until(answered, 20) == mine
            cluster.nameservers[0].kill()
            until = time.monotonic() + 2.5  # longer than an answer counts as fresh
            while time.monotonic() < until:
                assert ask(one, "g", "t")[1] == mine

            one.leave("g")
            one.join("h", "never-asked-for")
            one.hear("members")
            with pytest.raises(Unavailable, match="name server"):
                ask(one, "h", "never-asked-for")
