"""The initial offsets of a group are decided once for each topic, whenever the topic comes to a broker."""

from __future__ import annotations

from collections.abc import Callable

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, PullConsumer
from minimq_proto.v1 import broker_pb2
from support.raw_member import RawMember
from support.waiting import wait_until

TIMEOUT_S = 40.0
LATEST = broker_pb2.StartPosition(at=broker_pb2.START_AT_LATEST)
EVER_MS = 1 << 50


def read(nameserver: str, group: str, topic: str, count: int, queues: int) -> list[bytes]:
    """Return what a group with the rule "latest" reads of a topic until all is read and nothing is missing."""
    bodies: list[bytes] = []
    with PullConsumer(nameserver, group=group, start="latest") as consumer:
        consumer.subscribe(topic)

        def done() -> bool:
            bodies.extend(message.body for message in consumer.poll(0.1))
            return len(consumer.assignment) == queues and len(bodies) >= count and consumer.at_end()

        wait_until(done, TIMEOUT_S)
    return bodies


def test_a_broker_to_which_the_topic_comes_later_passes_nothing_over(
    cluster: LocalCluster, admin: Admin, producer: Producer, new_name: Callable[[], str]
) -> None:
    name = new_name()
    # The broker on which the group has begun decides about the members, or it does not.
    for topic, first, second in ((f"{name}-1", "broker-a", "broker-b"), (f"{name}-2", "broker-b", "broker-a")):
        admin.create_topic(topic, queues=1, brokers=[first])
        producer.send(Message(topic, b"before the group"))
        assert read(cluster.nameserver, topic, topic, 0, 1) == []
        admin.create_topic(topic, queues=1, brokers=[second])
        with Producer(cluster.nameserver) as later:
            later.send_many(Message(topic, b"%d" % number) for number in range(5))
            later.send(Message(topic, b"there"), queue=MessageQueue(topic, second, 0))
        bodies = read(cluster.nameserver, topic, topic, 6, 2)
        assert sorted(bodies) == sorted([b"0", b"1", b"2", b"3", b"4", b"there"])


# ---- one broker ----------------------------------------------------------------------------------


def send_to(producer: Producer, topic: str, count: int) -> None:
    producer.send_many([Message(topic, b"x") for _ in range(count)], queue=MessageQueue(topic, "broker-a", 0))


def test_a_group_that_reads_a_topic_elsewhere_begins_when_it_did(
    cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    send_to(producer, topic, 3)
    for ago_ms, said_ago_ms, offset in ((EVER_MS, 0, 0), (0, 0, 3), (0, 60_000, 0)):
        name = f"{group}-{offset}-{said_ago_ms}"
        with RawMember(cluster.brokers[0].address, name) as member:
            member.join(name, topic, start=LATEST)
            now_ms = member.hear("members").members.now_ms - said_ago_ms
            items = [broker_pb2.QueueEpoch(topic=topic, queue_id=0)]
            begun = [broker_pb2.TopicBegun(topic=topic, ago_ms=ago_ms)]
            member.say(acquire=broker_pb2.AcquireQueues(group=name, queues=items, begun=begun, now_ms=now_ms))
            assert member.granted().offset == offset


def test_a_queue_that_comes_is_granted_to_those_who_asked_before(
    cluster: LocalCluster, admin: Admin, new_name: Callable[[], str], group: str
) -> None:
    topic = new_name()
    with RawMember(cluster.brokers[0].address, group) as member:
        member.join(group, topic)
        member.ask(group, topic, 0, 1, 2)
        member.give_back(group, topic, 1)
        assert "granted" not in member.hears_before_heartbeat()
        admin.create_topic(topic, queues=2)
        assert member.granted().queue_id == 0
        admin.update_topic(topic, queues=3)
        assert member.granted().queue_id == 2


def test_who_waits_for_a_queue_waits_on_when_its_topic_is_made_anew(
    cluster: LocalCluster, admin: Admin, topic: str, group: str
) -> None:
    """And gets it: the former owner has not asked for it again."""
    address = cluster.brokers[0].address
    with RawMember(address, f"{group}-owns") as owner, RawMember(address, f"{group}-waits") as waiting:
        owner.join(group, topic)
        owner.ask(group, topic, 0)
        owner.granted()
        waiting.join(group, topic)
        waiting.ask(group, topic, 0)
        owner.hear("wanted")
        admin.delete_topic(topic)
        admin.create_topic(topic, queues=4)
        assert waiting.granted().queue_id == 0
