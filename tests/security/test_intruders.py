"""All that anybody could do to others before there were keys: nobody can with a key that lacks the right to it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from minimq import Admin, Credentials, LocalCluster
from minimq.errors import AccessDenied
from minimq_broker.options import BrokerOptions
from minimq_common.wire import rpc
from minimq_proto.v1 import (
    broker_pb2,
    broker_pb2_grpc,
    controller_pb2,
    controller_pb2_grpc,
    nameserver_pb2,
    nameserver_pb2_grpc,
    replication_pb2,
    replication_pb2_grpc,
)
from support.live_user import PATIENCE_S, RULES, TOPIC, Idle, Stream, mutual, written_messages
from support.secure_scraping import trust_of
from support.waiting import wait_until

GROUP = "g-victim-session"
#: Rights to all that the victim uses but its groups and transactions, and of those to some of its own.
OWN_RULES = [
    f"allow read topic {TOPIC}",
    f"allow write topic {TOPIC}",
    "allow read group m-*",
    "allow write transaction m-*",
]
READ, WRITE = 4, 2

pytestmark = pytest.mark.system


class Caller:
    """Stubs of all services, for one key."""

    def __init__(self, secure: LocalCluster, text: str, opened: ExitStack) -> None:
        trust = trust_of(Credentials.from_text(text))
        broker = opened.enter_context(rpc.open_channel(secure.brokers[0].address, trust))
        nameserver = opened.enter_context(rpc.open_channel(secure.nameserver, trust))
        self.broker: Any = broker_pb2_grpc.BrokerStub(broker)
        self.replication: Any = replication_pb2_grpc.ReplicationStub(broker)
        self.nameserver: Any = nameserver_pb2_grpc.NameServerStub(nameserver)
        self.controller: Any = controller_pb2_grpc.ControllerStub(nameserver)


@pytest.fixture(scope="module")
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def admin(secure: LocalCluster) -> Iterator[Admin]:
    with Admin(credentials=secure.credentials) as made:
        yield made


@pytest.fixture(scope="module")
def victim(secure: LocalCluster, admin: Admin, opened: ExitStack) -> Idle:
    """A user with a group, a member of it, and open streams."""
    text = mutual(secure, "victim", admin.add_user("victim", [*RULES, "allow write transaction v-*"]))
    return Idle(secure, text, "g-victim", opened)


@pytest.fixture(scope="module")
def mallory(secure: LocalCluster, admin: Admin, opened: ExitStack) -> Caller:
    return Caller(secure, mutual(secure, "mallory", admin.add_user("mallory", OWN_RULES)), opened)


@pytest.fixture(scope="module")
def root(secure: LocalCluster, opened: ExitStack) -> Caller:
    """The administrator: may do all that users may, and is no server."""
    assert secure.credentials is not None
    return Caller(secure, secure.credentials.read_text(), opened)


def denial(call: Any, request: Any) -> str:
    """Return what the caller of a unary call is told."""
    with pytest.raises(grpc.RpcError) as raised:
        call(request, timeout=PATIENCE_S)
    return denied(rpc.from_rpc_error(raised.value, "server"))


def stream_denial(call: Any, *requests: Any) -> str:
    """Return what the caller of a stream is told, which ends with it."""
    with pytest.raises(grpc.RpcError) as raised:
        list(call(iter(requests), timeout=PATIENCE_S))
    return denied(rpc.from_rpc_error(raised.value, "server"))


def denied(error: Exception) -> str:
    assert isinstance(error, AccessDenied), repr(error)
    return error.message


def test_traffic_is_not_drawn_by_a_registration(secure: LocalCluster, mallory: Caller, root: Caller) -> None:
    route = root.nameserver.GetRoute(nameserver_pb2.GetRouteRequest(topic=TOPIC), timeout=PATIENCE_S)
    topic = nameserver_pb2.TopicConfig(topic=TOPIC, read_queues=100, write_queues=100, permission=READ | WRITE)
    for name in ("broker-a", "broker-m"):
        false = nameserver_pb2.RegisterRequest(
            cluster="default",
            broker_name=name,
            address="127.0.0.1:1",
            data_version=1 << 60,
            topics=[topic],
            permission=6,
        )
        leaving = nameserver_pb2.RegisterRequest(cluster="default", broker_name=name, leaving=True)
        for caller in (mallory, root):
            for request in (false, leaving):
                assert "only servers of the cluster may" in stream_denial(caller.nameserver.Register, request)
    assert root.nameserver.GetRoute(nameserver_pb2.GetRouteRequest(topic=TOPIC), timeout=PATIENCE_S) == route


def test_nobody_reports_as_a_replica_or_joins_the_in_sync_set(
    secure: LocalCluster, mallory: Caller, root: Caller
) -> None:
    master, slave = secure.brokers
    before = master.replication()
    assert before is not None
    known = controller_pb2.ReplicaSet(cluster="default", broker_name="broker-a", term=before.term, in_sync=[0, 1])
    for replica_id in (0, 1, 7):  # the master, its slave, and one that nobody knows
        report = controller_pb2.ReportRequest(
            cluster="default", broker_name="broker-a", replica_id=replica_id, run=1, address="127.0.0.1:1", resigns=True
        )
        follow = replication_pb2.Follow(
            cluster="default", broker_name="broker-a", replica_id=replica_id, run=1, address="127.0.0.1:1", anew=True
        )
        synced = replication_pb2.ReplicaRequest(synced=1 << 60)
        fetch = replication_pb2.FetchEntries(log=follow, start=0, end=1 << 20)
        for caller in (mallory, root):
            denial(caller.controller.Report, report)
            denial(caller.controller.ChangeInSync, controller_pb2.ChangeInSyncRequest(known=known, in_sync=[0, 7]))
            for first in (
                replication_pb2.ReplicaRequest(follow=follow),
                replication_pb2.ReplicaRequest(fetch=fetch),
            ):
                said = stream_denial(caller.replication.Replicate, first, synced)
                assert "only servers of the cluster may" in said
    after = master.replication()
    assert after is not None
    assert (after.in_sync, after.term) == (before.in_sync, before.term) == ((0, 1), before.term)
    assert slave.replication() is not None


def test_a_snapshot_is_a_right_of_its_own(mallory: Caller) -> None:
    assert "may not backup cluster" in stream_denial(mallory.replication.Snapshot, replication_pb2.TakeSnapshot())


def test_what_others_have_committed_is_neither_seen_nor_changed(
    admin: Admin, victim: Idle, mallory: Caller, root: Caller
) -> None:
    def commit(group: str, topic: str = TOPIC, offset: int = 0) -> Any:
        item = broker_pb2.QueueOffset(topic=topic, offset=offset)
        return broker_pb2.CommitOffsetsRequest(group=group, offsets=[item], force=True)

    victim.broker.CommitOffsets(commit("g-victim"), timeout=PATIENCE_S)
    asked = broker_pb2.GetCommittedRequest(group="g-victim")
    before = root.broker.GetCommitted(asked, timeout=PATIENCE_S)
    assert before.offsets
    assert "may not read group g-victim" in denial(mallory.broker.CommitOffsets, commit("g-victim", offset=1 << 20))
    assert "may not read topic theirs" in denial(mallory.broker.CommitOffsets, commit("m-own", "theirs"))
    assert "may not describe group g-victim" in denial(mallory.broker.GetCommitted, asked)
    reset = broker_pb2.ResetOffsetsRequest(group="g-victim", topic=TOPIC, queue_ids=[0], offset=0, force=True)
    denial(mallory.broker.ResetOffsets, reset)
    denial(mallory.broker.DeleteGroup, broker_pb2.DeleteGroupRequest(group="g-victim", force=True, dead_letters=True))
    assert root.broker.GetCommitted(asked, timeout=PATIENCE_S) == before


def test_members_and_epochs_of_others_are_seen_by_nobody(victim: Idle, mallory: Caller) -> None:
    described = victim.broker.DescribeGroup(broker_pb2.DescribeGroupRequest(group=GROUP), timeout=PATIENCE_S)
    assert [*described.client_ids] == ["g-victim"]
    existing, missing = (
        denial(mallory.broker.DescribeGroup, broker_pb2.DescribeGroupRequest(group=group)).replace(group, "GROUP")
        for group in (GROUP, "g-of-nobody")
    )
    assert existing == missing
    assert not [*mallory.broker.ListGroups(broker_pb2.ListGroupsRequest(), timeout=PATIENCE_S).groups]
    lease = broker_pb2.Lease(group=GROUP, client_id="g-victim", epoch=1)
    pull = broker_pb2.PullRequest(topic=TOPIC, max_messages=1, max_bytes=1, lease=lease)
    [frame] = mallory.broker.Pull(iter([pull]), timeout=PATIENCE_S)
    assert "may not read group" in denied(rpc.from_failure(frame.failure))
    settle = broker_pb2.PopSettle(topic=TOPIC, epoch=1, spans=[0, 1], outcome=broker_pb2.POP_OUTCOME_DONE)
    pop = broker_pb2.PopRequest(group="g-victim-pop", client_id="g-victim", settles=[settle])
    answer = next(mallory.broker.Pop(iter([pop]), timeout=PATIENCE_S))
    assert "may not read group" in denied(rpc.from_failure(answer.results[0].failure))


def test_a_client_id_is_kept_for_its_user_in_the_grace_of_its_session(
    secure: LocalCluster, admin: Admin, opened: ExitStack
) -> None:
    text = mutual(secure, "absent", admin.add_user("absent", RULES))
    thief = Caller(secure, mutual(secure, "thief-of-ids", admin.add_user("thief-of-ids", RULES)), opened)
    numbers = itertools.count()

    def stolen_in_time() -> str:
        """Return what the thief is told; nothing if that took so long that the grace may have been over."""
        name = f"g-absent-{next(numbers)}"
        absent = Idle(secure, text, name, opened)
        began = time.monotonic()
        absent.streams["session"].close()
        join = broker_pb2.JoinGroup(group=f"{name}-session", topics=[TOPIC], allocation="averagely")
        session = Stream(thief.broker.Session, broker_pb2.SessionRequest(client_id=name, join=join))
        session.wait_for(1)
        session.close()
        said = str(session.said[0])
        return said if time.monotonic() - began < BrokerOptions().session_grace_s else ""

    said = wait_until(stolen_in_time, PATIENCE_S, what="the thief comes in time")
    assert "is in use by another client in group" in said


def test_routes_are_not_stopped_by_a_permission(mallory: Caller, root: Caller) -> None:
    route = root.nameserver.GetRoute(nameserver_pb2.GetRouteRequest(topic=TOPIC), timeout=PATIENCE_S)
    denial(mallory.broker.SetPermission, broker_pb2.SetPermissionRequest(permission=0))
    closed = broker_pb2.Topic(topic=TOPIC, read_queues=2, write_queues=2, permission=0)
    denial(mallory.broker.UpdateTopic, broker_pb2.UpdateTopicRequest(topic=TOPIC, permission=0))
    denial(mallory.broker.CreateTopic, broker_pb2.CreateTopicRequest(topic=closed))
    denial(mallory.broker.DeleteTopic, broker_pb2.DeleteTopicRequest(topic=TOPIC))
    denial(mallory.broker.Promote, broker_pb2.PromoteRequest(unclean=True))
    denial(mallory.nameserver.ForgetBroker, nameserver_pb2.ForgetBrokerRequest(broker_name="broker-a"))
    denial(mallory.controller.Promote, controller_pb2.PromoteReplicaRequest(cluster="default", broker_name="broker-a"))
    assert root.nameserver.GetRoute(nameserver_pb2.GetRouteRequest(topic=TOPIC), timeout=PATIENCE_S) == route


def test_transactions_of_others_are_neither_filled_nor_ended_nor_looked_at(mallory: Caller, root: Caller) -> None:
    stored = written_messages(root.broker)
    append = broker_pb2.AppendRequest(
        topic=TOPIC, batch=b"any", transaction=broker_pb2.Transaction(name="v-orders", number=1)
    )
    answers = mallory.broker.Append(iter([append]), timeout=PATIENCE_S)
    assert "may not write transaction v-orders" in denied(rpc.from_failure(next(answers).results[0].failure))
    decision = broker_pb2.Decision(number=1 << 40, broker_names=["broker-a"])
    for call, request in (
        (mallory.broker.CommitTransaction, broker_pb2.CommitTransactionRequest(name="v-orders", decision=decision)),
        (mallory.broker.DescribeTransaction, broker_pb2.DescribeTransactionRequest(name="v-orders", number=1)),
    ):
        assert "may not write transaction v-orders" in denial(call, request)
    assert written_messages(root.broker) == stored


def test_the_users_are_the_business_of_administrators(admin: Admin, mallory: Caller) -> None:
    before = admin.access()
    denial(mallory.broker.GetAccess, broker_pb2.GetAccessRequest())
    request = broker_pb2.SetAccessRequest(expected_version=before.version, document=before.encoded())
    denial(mallory.broker.SetAccess, request)
    assert stream_denial(mallory.nameserver.SyncAccess, nameserver_pb2.AccessNotice(version=1 << 40))
    assert admin.access() == before
