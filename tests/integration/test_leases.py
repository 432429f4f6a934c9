"""Leases at their edges: late commits, topics that go and come back, faults of strategies, damaged queues."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, PullConsumer, SendReceipt
from minimq_common.batch.header import DIRECTORY, HEADER_BYTES
from minimq_common.errors import CorruptBatch, Fenced, InvalidArgument
from minimq_proto.v1 import broker_pb2
from support.raw_member import RawMember
from support.waiting import wait_until


def test_a_queue_that_is_gone_does_not_keep_the_others_from_being_granted(
    cluster: LocalCluster, topic: str, group: str
) -> None:
    items = [broker_pb2.QueueEpoch(topic="gone", queue_id=0), broker_pb2.QueueEpoch(topic=topic, queue_id=0)]
    with RawMember(cluster.brokers[0].address, "member") as member:
        member.say(join=broker_pb2.JoinGroup(group=group, topics=[topic], allocation="averagely"))
        member.say(acquire=broker_pb2.AcquireQueues(group=group, queues=items))

        assert member.hear("granted").granted.topic == topic


@pytest.mark.parametrize("how", ["leave", "reset"])
def test_a_pull_that_waits_ends_when_its_lease_does(
    cluster: LocalCluster, admin: Admin, topic: str, group: str, how: str
) -> None:
    """Long before it has waited for as long as it was to."""
    queue = MessageQueue(topic, cluster.brokers[0].name, 0)
    with RawMember(cluster.brokers[0].address, group) as member, Producer(cluster.nameserver) as producer:
        member.join(group, topic)
        member.ask(group, topic, 0)
        lease = member.lease(group, member.granted().epoch)
        frames = member.pull(topic, 0, wait_ms=300_000, lease=lease)
        producer.send(Message(topic, b"x"), queue=queue)
        assert len(next(frames).batches) == 1  # it waits from now on
        if how == "leave":
            member.leave(group)
        else:
            admin.reset_offset(group, topic, "earliest", queues=[queue], force=True)

        assert next(frames).failure.code == Fenced.code


def commit(member: RawMember, topic: str, group: str, client_id: str, epoch: int, *, offset: int = 0) -> None:
    item = broker_pb2.QueueOffset(topic=topic, queue_id=0, offset=offset, epoch=epoch)
    request = broker_pb2.CommitOffsetsRequest(group=group, client_id=client_id, offsets=[item])
    member.link.call(member.link.stub.CommitOffsets, request, 30.0)


def test_a_consumer_at_the_end_of_queues_under_load_misses_nothing(
    cluster: LocalCluster, topic: str, group: str
) -> None:
    """Pulls that come right between the commit and what everybody is told of it."""
    received = 0
    futures: list[Future[SendReceipt]] = []
    with (
        Producer(cluster.nameserver, send_timeout_s=60.0) as producer,  # a late message is no lost one
        PullConsumer(cluster.nameserver, group=group) as consumer,
    ):
        consumer.subscribe(topic)
        for _ in range(3000):
            futures.extend(producer.send_async(Message(topic, b"x")) for _ in range(10))
            received += len(consumer.poll(timeout=0))
        producer.flush()
        assert all(future.result() for future in futures)

        def all_came() -> bool:
            nonlocal received
            received += len(consumer.poll(timeout=0.1))
            return received >= len(futures)

        wait_until(all_came, timeout=30)
    assert received == len(futures)


class Faulty:
    """A strategy with a fault."""

    name = "faulty"

    def allocate(
        self, group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        raise ZeroDivisionError("no members left")


def test_a_strategy_that_fails_is_named(cluster: LocalCluster, topic: str, group: str) -> None:
    with PullConsumer(cluster.nameserver, group=group, allocation=Faulty()) as consumer:
        consumer.subscribe(topic)
        with pytest.raises(InvalidArgument, match=r"faulty.*no members left"):
            wait_until(lambda: bool(consumer.poll(timeout=0.1)), timeout=30)


#: Bytes of the second batch that are changed: one of its body, and the first one of its header, the version.
DAMAGE = {"body": lambda at: at, "version": lambda at: at - DIRECTORY.size - 8 - 4 - HEADER_BYTES}


@pytest.fixture(params=DAMAGE)
def damaged(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """A cluster in one of whose queues a bit of the second of three batches is flipped.

    The bodies are so large that LMDB gives them pages of their own, of which no older copies lie about.
    """
    with LocalCluster(brokers=1, data_dir=tmp_path) as cluster:
        [broker] = cluster.brokers
        with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:
            admin.create_topic("t", queues=2)
            for queue_id in (0, 1):
                for body in (b"first", b"damaged", b"third"):
                    producer.send(Message("t", body * 600), queue=MessageQueue("t", broker.name, queue_id))
        broker.stop()
        [segment] = Path(broker.data_dir, "commitlog").glob("*.mdb")
        data = segment.read_bytes()
        at = DAMAGE[request.param](data.index(b"damaged"))
        segment.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        broker.start()
        yield cluster


def test_a_damaged_batch_is_named_once_and_neither_other_queues_nor_what_follows_suffer(damaged: LocalCluster) -> None:
    name = damaged.brokers[0].name
    both = [MessageQueue("t", name, queue_id) for queue_id in (0, 1)]
    bodies: list[bytes] = []
    errors: list[CorruptBatch] = []

    with PullConsumer(damaged.nameserver, group="g") as consumer:
        consumer.assign(both)

        def has_all() -> bool:
            try:
                bodies.extend(message.body[:5] for message in consumer.poll(timeout=0.1))
            except CorruptBatch as error:
                errors.append(error)
            return len(bodies) == 4 and bool(errors)

        wait_until(has_all, timeout=40)
        [error] = errors
        found = re.search(r"queue (\S+) at offset (\d+) \(log position \d+ .*seek to (\d+)", error.message)
        assert found is not None, error.message
        assert (found[2], found[3]) == ("1", "2")
        [broken] = [queue for queue in both if str(queue) == found[1]]
        assert (error.queue, error.offset, error.next_offset) == (broken, 1, 2)
        consumer.seek(broken, int(found[3]))
        assert [message.body[:5] for message in consumer.poll(timeout=30)] == [b"third"]
    assert sorted(bodies) == sorted([b"first", b"first", b"damag", b"third"])


def test_a_queue_that_was_sought_back_goes_on_there_after_a_restart_of_its_broker() -> None:
    with (
        LocalCluster(brokers=1) as cluster,
        Admin(cluster.nameserver) as admin,
        Producer(cluster.nameserver) as producer,
        PullConsumer(cluster.nameserver, group="g", auto_commit=False) as consumer,
    ):
        admin.create_topic("t", queues=1)
        producer.send_many([Message("t", b"%d" % number) for number in range(10)])
        consumer.subscribe("t")
        wait_until(lambda: consumer.poll(0.1), 60.0)
        consumer.commit()
        [queue] = consumer.assignment
        consumer.seek(queue, 0)
        found = [message.queue_offset for message in consumer.poll(60.0, 3)]
        cluster.brokers[0].stop()
        cluster.brokers[0].start()

        def has_all() -> bool:
            found.extend(message.queue_offset for message in consumer.poll(0.1))
            return found == [*range(10)]

        wait_until(has_all, 60.0)
