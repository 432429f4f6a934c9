"""The deciding broker divides the queues of all brokers for the members of a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, PullConsumer, PushConsumer
from minimq.aio import PullConsumer as AsyncPullConsumer
from minimq.aio import PushConsumer as AsyncPushConsumer
from minimq.rebalance import AllocationStrategy, ConsistentHash, MetaQ, allocation, name_of
from minimq_common.errors import GroupConflict, InvalidArgument, Unavailable
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2
from support.members import Log, Member, shared_evenly
from support.raw_member import RawMember
from support.waiting import wait_until

PATIENCE_S = 40.0

Connect = Callable[[int, str], RawMember]


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
        one.join(group, topic, allocation=strategy, assigned_by_server=True)
    version = 0
    for one in members:
        while list((told := one.hear("members").members).client_ids) != names:
            pass
        version = told.version

    for one in members:
        share = allocation(strategy).allocate(group, one.client_id, all_queues(topic), names)
        assert ask(one, group, topic) == (version, share)


@pytest.mark.parametrize(
    ("by_server", "asked_by", "topic_asked", "text"),
    [
        (False, "member", "topic", "compute their queues themselves"),
        (True, "stranger", "topic", "stranger.*join it before"),
        (True, "member", "other", "not to 'other'"),
    ],
)
def test_what_cannot_be_answered(
    member: Connect, topic: str, group: str, *, by_server: bool, asked_by: str, topic_asked: str, text: str
) -> None:
    one, stranger = member(0, f"{group}-member"), member(0, f"{group}-stranger")
    one.join(group, topic, assigned_by_server=by_server)
    one.hear("members")
    with pytest.raises(InvalidArgument, match=text):
        ask(one if asked_by == "member" else stranger, group, topic if topic_asked == "topic" else "other")


# ---- what is agreed on --------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["sticky", "consistent_hash", "machine_room(north)", "my_own"])
def test_a_strategy_that_brokers_do_not_know_is_refused_when_joining(
    member: Connect, topic: str, group: str, strategy: str
) -> None:
    one = member(0, group)
    one.join(group, topic, allocation=strategy, assigned_by_server=True)
    failure = one.hear("refused").refused.failure
    assert failure.code == "INVALID_ARGUMENT"
    assert f"with '{strategy}': it knows averagely, averagely_by_circle; " in failure.message
    assert one.call("DescribeGroup", broker_pb2.DescribeGroupRequest(group=group)).client_ids == []


@pytest.mark.parametrize("strategy", ["sticky", ConsistentHash(), MetaQ()], ids=name_of)
@pytest.mark.parametrize("kind", [PullConsumer, PushConsumer, AsyncPullConsumer, AsyncPushConsumer])
def test_a_consumer_with_a_strategy_that_brokers_do_not_know_is_not_made(
    kind: Callable[..., object], strategy: str | AllocationStrategy
) -> None:
    with pytest.raises(InvalidArgument, match=r"server cannot assign .* it knows averagely, .* assignment 'client'"):
        kind("127.0.0.1:9", group="g", allocation=strategy, assignment="server")


@pytest.mark.parametrize(("first", "second"), [("client", "server"), ("server", "client")])
def test_members_that_ask_and_members_that_compute_are_not_in_one_group(
    cluster: LocalCluster, topic: str, group: str, first: str, second: str
) -> None:
    with (
        Member(cluster.nameserver, group, topic, Log(), assignment=first) as one,
        Member(cluster.nameserver, group, topic, Log(), assignment=first) as two,
    ):
        wait_until(shared_evenly(one, two, queues=8), PATIENCE_S)
        with Member(cluster.nameserver, group, topic, Log(), assignment=second) as other:
            error = wait_until(lambda: other.error, PATIENCE_S)
        assert isinstance(error, GroupConflict)
        names = {"client": "each client itself", "server": "the server"}
        assert f"assigned by {names[first]}, this member by {names[second]}: " in error.message
        assert (one.error, two.error) == (None, None)
        with Admin(cluster.nameserver) as admin:
            assert admin.describe_group(group).assignment == first


# ---- who answers --------------------------------------------------------------------------------


def test_a_broker_that_does_not_decide_names_the_one_that_does(member: Connect, topic: str, group: str) -> None:
    one = member(1, group)
    one.join(group, topic, assigned_by_server=True)
    one.hear("members")
    with pytest.raises(GroupConflict, match=r"broker broker-a decides .* not broker-b"):
        ask(one, group, topic)


def test_a_topic_without_a_route_has_nothing_to_share(member: Connect, group: str) -> None:
    one = member(0, group)
    one.join(group, "no-such-topic", assigned_by_server=True)
    version = one.hear("members").members.version
    assert ask(one, group, "no-such-topic") == (version, [])


@pytest.mark.fault
def test_another_broker_decides_when_the_first_is_gone_and_routes_outlive_their_name_server(tmp_path: Path) -> None:
    with LocalCluster(brokers=2, data_dir=tmp_path) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=1)
        with RawMember(cluster.brokers[1].address, "m") as one:
            one.join("g", "t", assigned_by_server=True)
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
            one.join("h", "never-asked-for", assigned_by_server=True)
            one.hear("members")
            with pytest.raises(Unavailable, match="name server"):
                ask(one, "h", "never-asked-for")
