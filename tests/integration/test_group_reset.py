"""Groups that are told to go on elsewhere, through `Admin`: real members on real servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from minimq import Admin, LocalCluster, MessageQueue, Producer
from minimq.connection.client import ClusterClient
from minimq_common.errors import (
    DeadlineExceeded,
    GroupConflict,
    InvalidArgument,
    MinimqError,
    OffsetOutOfRange,
    QueueNotFound,
    TopicNotFound,
    Unavailable,
)
from minimq_proto.v1 import broker_pb2
from support import fake_broker
from support.fake_broker import registered
from support.groups import TIMEOUT_S, committed, fill, members_of, start
from support.members import Log, Member
from support.raw_member import RawMember
from support.waiting import wait_until


@pytest.fixture
def pair() -> Iterator[LocalCluster]:
    """One name server and two brokers, for faults."""
    with LocalCluster(brokers=2) as own:
        yield own


def test_a_reset_to_the_beginning_the_end_an_offset_and_a_time(
    admin: Admin, cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    queues = admin.route(topic).read_queues()
    start(cluster.nameserver, group, topic)
    fill(producer, queues, 3)
    middle = wait_until(lambda: after_all_of(admin, topic))
    assert middle is not None
    fill(producer, queues, 4)

    assert admin.reset_offset(group, topic, "latest") == dict.fromkeys(queues, 7)
    assert admin.describe_group(group).lag == 0
    assert admin.reset_offset(group, topic, middle) == dict.fromkeys(queues, 3)
    assert admin.describe_group(group).lag == 32
    assert admin.reset_offset(group, topic, 5, queues=queues[2:4]) == dict.fromkeys(queues[2:4], 5)
    assert committed(admin.describe_group(group)) == {**dict.fromkeys(queues, 3), **dict.fromkeys(queues[2:4], 5)}
    assert admin.reset_offset(group, topic) == dict.fromkeys(queues, 0)
    assert admin.committed_offsets(group, topic) == dict.fromkeys(queues, 0)

    log = Log()
    admin.reset_offset(group, topic, 6)
    with Member(cluster.nameserver, group, topic, log):
        wait_until(lambda: len(log) >= 8, TIMEOUT_S)
    assert log.missing({(queue, 6) for queue in queues}) == set()
    assert len(log) == 8


def after_all_of(admin: Admin, topic: str) -> datetime | None:
    """Return a moment that is later than all that is stored in a topic."""
    latest = max(item.last_stored_at for item in admin.describe_topic(topic).queues if item.last_stored_at)
    now = datetime.now(UTC)
    return now if now > latest + timedelta(milliseconds=5) else None


def test_a_reset_under_members_is_rejected_with_their_names_unless_it_is_forced(
    admin: Admin, cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    queues = admin.route(topic).read_queues()
    fill(producer, queues, 2)
    log = Log()
    with Member(cluster.nameserver, group, topic, log, auto_commit=False) as one:
        wait_until(lambda: len(log) == 16, TIMEOUT_S)
        with pytest.raises(GroupConflict, match=one.consumer.client_id):
            admin.reset_offset(group, topic, "latest")
        assert admin.committed_offsets(group, topic) == dict.fromkeys(queues, 0)
        assert admin.reset_offset(group, topic, "latest", force=True) == dict.fromkeys(queues, 2)
        assert admin.committed_offsets(group, topic) == dict.fromkeys(queues, 2)
    wait_until(lambda: not members_of(cluster.nameserver, group), TIMEOUT_S)
    assert admin.reset_offset(group, topic, 1) == dict.fromkeys(queues, 1)


def test_a_reset_that_cannot_be_is_rejected_before_anything_is_changed(
    admin: Admin, cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    queues = admin.route(topic).read_queues()
    start(cluster.nameserver, group, topic)
    fill(producer, queues, 1)
    wrong: list[tuple[type[MinimqError], str, Callable[[], object]]] = [
        (TopicNotFound, "no-such-topic", lambda: admin.reset_offset(group, "no-such-topic")),
        (InvalidArgument, "illegal group", lambda: admin.reset_offset("a b", topic)),
        (InvalidArgument, "time zone", lambda: admin.reset_offset(group, topic, datetime(2026, 1, 31))),  # noqa: DTZ001
        (InvalidArgument, "'soon'", lambda: admin.reset_offset(group, topic, "soon")),
        (InvalidArgument, "as '4711ms'", lambda: admin.reset_offset(group, topic, "4711")),
        (InvalidArgument, "True", lambda: admin.reset_offset(group, topic, True)),
        (InvalidArgument, "-1", lambda: admin.reset_offset(group, topic, -1)),
        (InvalidArgument, "below 2", lambda: admin.reset_offset(group, topic, 1 << 63)),
        (
            OffsetOutOfRange,
            r"offset 2 is not in .*/broker-a/0 \(0 to 1\), .*/broker-b/0 \(0 to 1\) and 3 others: nothing was changed",
            lambda: admin.reset_offset(group, topic, 2),
        ),
        (
            OffsetOutOfRange,
            "nothing was changed; if it is a time, in milliseconds since 1970, write 1795345310757ms",
            lambda: admin.reset_offset(group, topic, 1795345310757),
        ),
        (InvalidArgument, "queues is empty", lambda: admin.reset_offset(group, topic, queues=[])),
        (
            InvalidArgument,
            "not one of topic",
            lambda: admin.reset_offset(group, topic, queues=[MessageQueue("other", "broker-a", 0)]),
        ),
        (
            QueueNotFound,
            "broker-z",
            lambda: admin.reset_offset(group, topic, queues=[MessageQueue(topic, "broker-z", 0)]),
        ),
        (
            QueueNotFound,
            "no queue .*/99: broker-a has 4",
            lambda: admin.reset_offset(group, topic, "latest", queues=[MessageQueue(topic, "broker-a", 99)]),
        ),
    ]
    for error, text, call in wrong:
        with pytest.raises(error, match=text):
            call()
    assert admin.committed_offsets(group, topic) == dict.fromkeys(queues, 0)


# ---- Not all brokers ----------------------------------------------------------------------------


def test_a_queue_that_is_held_rejects_the_reset_of_all(
    admin: Admin, cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    queues = admin.route(topic).read_queues()
    fill(producer, queues, 1)
    with RawMember(cluster.brokers[1].address, f"{group}-holder") as holder:
        holder.join(group, topic, handover_timeout_ms=60_000)
        holder.ask(group, topic, 2)
        holder.granted()
        holder.give_back(group, topic, 2)
        holder.leave(group)
        wait_until(lambda: not admin.describe_group(group).members)
    held = MessageQueue(topic, "broker-b", 2)
    before = admin.committed_offsets(group, topic)
    for chosen in (None, [held], [queues[0], held]):
        with pytest.raises(GroupConflict, match=f"held for members that have left: {held} for {group}-holder; wait"):
            admin.reset_offset(group, topic, "earliest", queues=chosen)
    assert admin.committed_offsets(group, topic) == before
    others = [queue for queue in queues if queue != held]
    assert admin.reset_offset(group, topic, "latest", queues=others) == dict.fromkeys(others, 1)
    assert admin.reset_offset(group, topic, "latest", force=True) == dict.fromkeys(queues, 1)


@pytest.mark.fault
def test_a_broker_without_a_master_is_named_and_nothing_is_changed(pair: LocalCluster) -> None:
    with (
        fake_broker.alone(pair.nameserver, name="broker-b", broker_id=1) as slave,
        Admin(pair.nameserver) as patient,
        Admin(pair.nameserver, timeout_s=3.0) as admin,
        RawMember(pair.server("broker-a").address, "looks") as other,
    ):
        patient.create_topic("orders", 2)
        slave.carry("orders")
        pair.server("broker-b").kill()
        wait_until(lambda: [data.master for data in registered(pair.nameserver)][1] is None)
        here = [MessageQueue("orders", "broker-a", number) for number in range(2)]
        there = MessageQueue("orders", "broker-b", 0)
        for queues in (None, [there], [*here, there]):
            with pytest.raises(Unavailable, match="also on broker-b, which has no master now: nothing was changed"):
                admin.reset_offset("g", "orders", queues=queues)
        assert not other.call("GetCommitted", broker_pb2.GetCommittedRequest(group="g")).offsets
        assert admin.reset_offset("g", "orders", queues=here) == dict.fromkeys(here, 0)


@pytest.mark.fault
def test_a_reset_that_fails_half_way_says_what_was_reset(pair: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    call_all = ClusterClient.call_all

    def hang_before_the_change(self: ClusterClient, *arguments: Any) -> Any:
        requests = arguments[2].values() if isinstance(arguments[2], dict) else ()
        if any(isinstance(request, broker_pb2.ResetOffsetsRequest) for request in requests):
            pair.server("broker-b").pause()
        return call_all(self, *arguments)

    with Admin(pair.nameserver) as patient, Admin(pair.nameserver, timeout_s=3.0) as admin:
        patient.create_topic("orders", 2)
        with monkeypatch.context() as patch:
            patch.setattr(ClusterClient, "call_all", hang_before_the_change)
            with pytest.raises(DeadlineExceeded) as failed:
                admin.reset_offset("g", "orders")
        text = str(failed.value)
        assert "the offsets of group g were not reset on 1 of 2 brokers: broker-b " in text
        assert text.endswith("; done on broker-a: repeat the call to complete it")
        pair.server("broker-b").resume()
        assert {queue.broker_name for queue in patient.reset_offset("g", "orders")} == {"broker-a", "broker-b"}


@pytest.mark.fault
def test_a_reset_waits_for_the_brokers_of_a_restarted_name_server(pair: LocalCluster) -> None:
    with Admin(pair.nameserver) as admin:
        admin.create_topic("orders", 1)
        [nameserver] = pair.nameservers
        broker = pair.server("broker-b")
        broker.pause()  # so that it cannot be back at once
        nameserver.kill()
        nameserver.start()
        wait_until(lambda: [data.broker_name for data in registered(nameserver.address)] == ["broker-a"])
        resuming = threading.Timer(0.1, broker.resume)
        resuming.start()
        assert {queue.broker_name for queue in admin.reset_offset("g", "orders")} == {"broker-a", "broker-b"}
        resuming.join()
