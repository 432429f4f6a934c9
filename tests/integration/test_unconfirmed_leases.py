"""Members whose session to a broker breaks: what they fetched ahead is not handed out when others may have it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from minimq import Admin, ConsumeResult, LocalCluster, Message, Producer, PullConsumer, PushConsumer, ReceivedMessage
from minimq_common.errors import Fenced
from minimq_proto.v1 import broker_pb2
from support.detour import lead
from support.raw_member import RawMember
from support.relay import Relay
from support.waiting import wait_until

TIMEOUT_S = 40.0
COUNT = 200


@pytest.fixture
def grace_s() -> float:
    """Return the time after which a broker gives the queues of a broken session away."""
    return 3.0


@pytest.fixture
def cluster(tmp_path: Path, grace_s: float) -> Iterator[LocalCluster]:
    """A broker whose topic "t" has one queue with messages."""
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options={"session_grace_s": grace_s}) as made:
        with Admin(made.nameserver) as admin, Producer(made.nameserver) as producer:
            admin.create_topic("t", queues=1)
            producer.send_many(Message("t", b"%d" % number) for number in range(COUNT))
        yield made


@pytest.fixture
def relay(cluster: LocalCluster) -> Iterator[Relay]:
    with Relay(cluster.brokers[0].address) as made:
        yield made


def read(consumer: PullConsumer, count: int) -> list[int]:
    """Return the numbers of so many messages, one poll for each."""
    found: list[int] = []

    def enough() -> bool:
        found.extend(int(message.body) for message in consumer.poll(0.1, max_messages=1))
        return len(found) >= count

    wait_until(enough, TIMEOUT_S)
    return found


def test_a_member_that_is_cut_off_hands_out_nothing_that_others_may_have(cluster: LocalCluster, relay: Relay) -> None:
    [broker] = cluster.brokers
    with ExitStack() as members:
        # An automatic commit would log the loss that the last but one commit is to raise.
        consumer = members.enter_context(PullConsumer(cluster.nameserver, group="g", auto_commit=False))
        lead(consumer, {broker.address: relay.address})
        consumer.subscribe("t")
        assert read(consumer, 10) == list(range(10))
        consumer.commit()
        assert read(consumer, 5) == list(range(10, 15)), "which it has in flight"

        relay.cut(for_good=True)
        heir = members.enter_context(RawMember(broker.address, "heir"))
        heir.join("g", "t", filters=["*"])
        heir.hear("members")
        heir.ask("g", "t", 0)
        granted = heir.granted()
        assert granted.offset == 10
        for _ in range(20):
            assert consumer.poll(0.02, max_messages=1) == [], "though it has fetched them and trusts the broker"
        assert consumer.assignment, "it has not lost the queue: it does not know"

        heir.commit("g", "t", 0, 50, granted.epoch)
        heir.leave("g")
        relay.mend()
        assert read(consumer, COUNT - 50) == list(range(50, COUNT))
        with pytest.raises(Fenced, match=r"t/broker-a/0 up to 15"):
            consumer.commit()
        consumer.commit()


@pytest.mark.parametrize("grace_s", [6.0])
def test_a_member_whose_lease_is_confirmed_goes_on_where_it_was(
    cluster: LocalCluster, relay: Relay, grace_s: float
) -> None:
    [broker] = cluster.brokers
    with PullConsumer(cluster.nameserver, group="g") as consumer:
        lead(consumer, {broker.address: relay.address})
        consumer.subscribe("t")
        found = read(consumer, 10)
        [reader] = consumer._reader.fetcher._readers.values()
        joined = time.monotonic()
        wait_until(lambda: time.monotonic() >= joined + grace_s, what="the latest sign of life is as old as the grace")
        relay.cut(for_good=True)
        wait_until(lambda: time.monotonic() >= reader.lease.trust.until, TIMEOUT_S)
        assert consumer.poll(0.0) == []
        relay.mend()
        found += read(consumer, COUNT - len(found))
        assert found == list(range(COUNT)), "nothing is repeated"
        consumer.commit()


@pytest.mark.parametrize("orderly", [True, False])
def test_a_listener_is_given_nothing_that_others_may_have(cluster: LocalCluster, relay: Relay, orderly: bool) -> None:
    """Not in order, the next call waits already for the only thread."""
    [broker] = cluster.brokers
    seen: list[int] = []

    def listen(messages: list[ReceivedMessage]) -> ConsumeResult:
        seen.extend(int(message.body) for message in messages)
        if len(seen) == 1:
            relay.cut(for_good=True)
            heir.say(join=broker_pb2.JoinGroup(group="g", topics=["t"], filters=["*"], allocation="averagely"))
            heir.hear("members")
            heir.ask("g", "t", 0)
            heir.granted()
        return ConsumeResult.SUCCESS

    with (
        RawMember(broker.address, "heir") as heir,
        PushConsumer(cluster.nameserver, group="g", orderly=orderly, threads=1, batch_size=1) as consumer,
    ):
        lead(consumer, {broker.address: relay.address})
        consumer.subscribe("t")
        consumer.start(listen)
        wait_until(lambda: seen, TIMEOUT_S)
        wait_until(lambda: not consumer._runner.in_flight, TIMEOUT_S)
        heir.commit("g", "t", 0, 100, _epoch(heir))
        heir.leave("g")
        relay.mend()
        wait_until(lambda: seen[-1] == COUNT - 1, TIMEOUT_S)
    assert seen == [0, *range(100, COUNT)]


def _epoch(heir: RawMember) -> int:
    heir.ask("g", "t", 0)  # to be told once more
    return heir.granted().epoch
