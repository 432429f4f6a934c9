"""The configuration of a group outlives the broker: a rejected member does not take the group over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from minimq import Admin, ConsumeResult, LocalCluster, Message, Producer, PushConsumer
from minimq.local.server_process import BrokerProcess
from minimq_common.errors import GroupConflict
from support.raw_member import RawMember
from support.waiting import wait_until

TIMEOUT_S = 30.0


@pytest.fixture
def grace_s() -> float:
    """For so long after a start members that come back have precedence."""
    return 60.0


@pytest.fixture
def single(tmp_path: Path, grace_s: float) -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options={"session_grace_s": grace_s}) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=4)
        yield cluster


def joins(broker: BrokerProcess, client_id: str, tag: str) -> bool:
    """Tell whether a broker takes a member that filters by a tag; its session ends without a word."""
    with RawMember(broker.address, client_id) as member:
        member.join("g", "t", filters=[tag])
        while True:
            event = member.events.get(timeout=TIMEOUT_S)
            match event.WhichOneof("event"):
                case "rejected":
                    assert event.rejected.failure.code == GroupConflict.code
                    return False
                case "members":
                    return True


@pytest.mark.fault
@pytest.mark.parametrize("grace_s", [2.5])
def test_a_group_whose_members_do_not_come_back_is_taken_over_after_a_while(single: LocalCluster) -> None:
    [broker] = single.brokers
    with RawMember(broker.address, "good") as good:
        good.join("g", "t", filters=["red"])
        good.ask("g", "t", 0)
        good.granted()
        broker.kill()
    broker.start()
    with RawMember(broker.address, "bad") as bad:
        bad.join("g", "t", filters=["blue"])
        bad.hear("rejected")
        bad.hear("conflict_over")
        bad.join("g", "t", filters=["blue"])
        assert bad.hear("members").members.client_ids == ["bad"]


@pytest.mark.fault
def test_a_group_that_all_members_have_left_agrees_on_nothing(single: LocalCluster) -> None:
    [broker] = single.brokers
    with RawMember(broker.address, "good") as good:
        good.join("g", "t", filters=["red"])
        good.ask("g", "t", 0)
        good.granted()
        good.leave("g")
        good.hears_before_heartbeat()
    with RawMember(broker.address, "witness") as witness:  # what it is granted comes behind the fact in the log
        witness.join("other", "t")
        witness.ask("other", "t", 0)
        witness.granted()
        broker.kill()
    broker.start()
    assert joins(broker, "next", "blue")


@pytest.mark.fault
def test_members_are_not_displaced_by_a_rejected_one_that_keeps_trying(single: LocalCluster) -> None:
    """By killed brokers again and again; the filter of the rejected one would pass over everything."""
    [broker] = single.brokers
    read: set[bytes] = set()
    enough = threading.Event()
    sent: list[bytes] = []

    def listen(messages: list[Message]) -> ConsumeResult:
        read.update(message.body for message in messages)
        if len(read) == 60:
            enough.set()
        return ConsumeResult.SUCCESS

    with (
        Producer(single.nameserver) as producer,
        PushConsumer(single.nameserver, group="g") as good,
        PushConsumer(single.nameserver, group="g") as bad,
    ):
        good.subscribe("t")
        good.start(listen)  # type: ignore[arg-type]
        wait_until(lambda: len(good.assignment) == 4, TIMEOUT_S)
        bad.subscribe("t", "nothing")
        bad.start(listen)  # type: ignore[arg-type]
        for _ in range(3):
            broker.kill()
            broker.start()
            for _ in range(20):
                sent.append(b"%d" % len(sent))
                producer.send(Message("t", sent[-1], tag="order"))
        assert enough.wait(TIMEOUT_S)
        assert bad.assignment == []
    assert read == set(sent)
