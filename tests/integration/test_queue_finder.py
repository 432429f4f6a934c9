"""`QueueFinder` on real servers: what topics have, also while a broker or its master is offline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, PullConsumer
from minimq.consuming.queue_finder import QueueFinder
from minimq.consuming.stored_offsets import TopicOnBroker
from minimq_common.errors import GroupConflict, GroupNotFound, InvalidArgument, Unavailable
from support.client_replicas import bring_back, leave_slaves_alone, send
from support.replicas import TIMEOUT_S, queues, replicas, wait_caught_up
from support.waiting import wait_until


@pytest.fixture
def finder(cluster: LocalCluster) -> Iterator[QueueFinder]:
    with closing(QueueFinder(cluster.nameserver)) as made:
        yield made


def test_progress_of_a_group_without_members(
    cluster: LocalCluster, finder: QueueFinder, admin: Admin, topic: str
) -> None:
    queue, other = MessageQueue(topic, "broker-a", 1), MessageQueue(topic, "broker-b", 2)
    with Producer(cluster.nameserver) as producer:
        producer.send_many([Message(topic, b"x")] * 5, queue=queue)
    assert finder.publish(topic, {queue: 4, other: 0}) == {}
    assert admin.committed_offsets(topic) == {queue: 4, other: 0}
    assert admin.describe_group(topic).lag == 1
    failures = finder.publish(topic, {queue: 2, other: 7})  # one goes back, the other is beyond the end
    assert list(failures) == [other]
    assert admin.committed_offsets(topic)[queue] == 2
    with pytest.raises(InvalidArgument):
        finder.publish("a group", {queue: 1})


@pytest.mark.fault
def test_a_broker_that_is_offline_is_named_and_the_others_answer() -> None:
    with LocalCluster(brokers=2) as own, Admin(own.nameserver) as admin, closing(QueueFinder(own.nameserver)) as finder:
        admin.create_topic("t", queues=1)
        assert len(finder.find(["t"]).queues) == 2
        own.brokers[0].kill()
        found = finder.find(["t"], [TopicOnBroker("t", "broker-a")])  # told of also when no route leads there any more
        assert list(found.queues) == [MessageQueue("t", "broker-b", 0)]
        assert list(found.failures) == [("t", "broker-a")]
        with pytest.raises(Unavailable, match="the offset of queue t/broker-a/0"):
            finder.offsets_at([MessageQueue("t", "broker-a", 0)], datetime.now(UTC))
        own.brokers[0].start()
        wait_until(lambda: len(finder.find(["t"]).queues) == 2, TIMEOUT_S)


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_slaves_are_asked_while_the_master_is_offline(tmp_path: Path) -> None:
    with replicas(tmp_path, nameservers=2) as cluster, closing(QueueFinder(cluster.nameserver)) as finder:
        send(cluster, 100)
        wait_caught_up(cluster)
        before = finder.find(["t"]).queues
        assert sum(found.end for found in before.values()) == 100
        assert not any(found.from_slave for found in before.values())

        leave_slaves_alone(cluster)
        meanwhile = finder.find(["t"])
        assert meanwhile.failures == {}
        assert {queue: found.end for queue, found in meanwhile.queues.items()} == {
            queue: found.end for queue, found in before.items()
        }
        assert all(found.from_slave for found in meanwhile.queues.values())
        assert finder.offsets_at(queues(cluster), datetime.fromtimestamp(1, UTC)) == dict.fromkeys(queues(cluster), 0)
        bring_back(cluster)
        wait_until(lambda: not any(f.from_slave for f in finder.find(["t"]).queues.values()), TIMEOUT_S)


def test_published_progress_is_marked_and_cannot_be_reset(
    cluster: LocalCluster, finder: QueueFinder, admin: Admin, topic: str, group: str
) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    with Producer(cluster.nameserver) as producer:
        producer.send_many([Message(topic, b"x")] * 5, queue=queue)
    assert finder.publish(group, {queue: 2}) == {}
    found = admin.describe_group(group)
    assert (found.is_published, found.members, found.lag, found.lag_unit) == (True, (), 3, "offset")
    for force, text in ((False, "start the query with startingOffsets"), (True, "has published offsets only")):
        with pytest.raises(GroupConflict, match=text):
            admin.reset_offset(group, topic, "earliest", force=force)
    with PullConsumer(cluster.nameserver, group=group) as consumer:  # consumers take the name
        consumer.subscribe(topic)
        wait_until(lambda: consumer.poll(0.1))
        wait_until(lambda: not admin.describe_group(group).is_published)
    wait_until(lambda: not admin.describe_group(group).members)
    admin.reset_offset(group, topic, "earliest")
    assert finder.publish(group, {queue: 1}) == {}
    assert admin.describe_group(group).is_published
    admin.delete_group(group)
    with pytest.raises(GroupNotFound):
        admin.describe_group(group)
