"""Another number of queues while producers and consumers run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, MinimqError, Producer, PullConsumer
from minimq_common.errors import NotDrained
from support.members import Log, Member
from support.waiting import wait_until

pytestmark = pytest.mark.system

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, nameservers=2) as own:
        yield own


def counts(admin: Admin, topic: str) -> dict[str, tuple[int, int]]:
    """Return (read, write) queues by broker, as the brokers have them."""
    return {item.broker_name: (item.read_queues, item.write_queues) for item in admin.describe_topic(topic).settings}


def fill(nameserver: str, topic: str, broker: str, *queue_ids: int, messages: int = 3) -> None:
    """Send some messages to each of these queues."""
    with Producer(nameserver) as producer:
        for queue_id in queue_ids:
            for number in range(messages):
                producer.send(Message(topic, b"%d" % number), queue=MessageQueue(topic, broker, queue_id))


def commit(nameserver: str, group: str, topic: str, broker: str, *queue_ids: int, messages: int = 3) -> None:
    """Commit that many messages of each of these queues as a group."""
    queues = [MessageQueue(topic, broker, queue_id) for queue_id in queue_ids]
    with PullConsumer(nameserver, group=group, auto_commit=False) as consumer:
        consumer.assign(queues)
        consumer.commit(dict.fromkeys(queues, messages))


class Sender:
    """Sends messages, one after the other, until the end of its block."""

    def __init__(self, nameserver: str, topic: str) -> None:
        self.sent: set[tuple[MessageQueue, int]] = set()
        self.errors: list[MinimqError] = []
        self._producer = Producer(nameserver)
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sender")

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(TIMEOUT_S)
            self._producer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                receipt = self._producer.send(Message(self._topic, b"x"))
                self.sent.add((receipt.queue, receipt.queue_offset))
            except MinimqError as error:
                self.errors.append(error)

    def queues(self) -> set[MessageQueue]:
        return {queue for queue, _ in self.sent.copy()}


def test_growing_and_shrinking_leaves_no_message_unread(shared: LocalCluster) -> None:
    topic, log = "running", Log()
    with Admin(shared.nameserver) as admin:
        admin.create_topic(topic, 2)
        sender = Sender(shared.nameserver, topic)
        with Member(shared.nameserver, "g", topic, log), sender.running():
            wait_until(lambda: len(sender.queues()) == 4, TIMEOUT_S)
            admin.update_topic(topic, queues=5)
            assert counts(admin, topic) == {"broker-a": (5, 5), "broker-b": (5, 5)}
            wait_until(lambda: len(sender.queues()) == 10, TIMEOUT_S, what="the producer sends to the new queues")
            admin.update_topic(topic, write_queues=1)
            wait_until(lambda: not log.missing(sender.sent.copy()), TIMEOUT_S, what="the group reads the rest")

            def hidden() -> bool:
                try:
                    admin.update_topic(topic, read_queues=1)
                except NotDrained:  # the group has not committed yet
                    return False
                return True

            wait_until(hidden, TIMEOUT_S)
            assert counts(admin, topic) == {"broker-a": (1, 1), "broker-b": (1, 1)}
            before = len(sender.sent)
            wait_until(lambda: len(sender.sent) > before + 50, TIMEOUT_S, what="sending goes on")
        with Member(shared.nameserver, "g", topic, log):
            wait_until(lambda: not log.missing(sender.sent), TIMEOUT_S, what="every message is read")
    assert sender.errors == []


def test_queues_with_unread_messages_are_removed_only_by_force(shared: LocalCluster) -> None:
    topic = "forced"
    with Admin(shared.nameserver) as admin:
        admin.create_topic(topic, 4, brokers=["broker-a"])
        fill(shared.nameserver, topic, "broker-a", 2, 3)
        commit(shared.nameserver, "audit", topic, "broker-a", 2, 3)
        commit(shared.nameserver, "dead", topic, "broker-a", 2, messages=1)
        with pytest.raises(NotDrained, match=r"group dead has not read 5 messages of queues 2, 3: lower the write"):
            admin.update_topic(topic, queues=2)
        assert counts(admin, topic) == {"broker-a": (4, 4)}
        admin.delete_group("dead")
        admin.update_topic(topic, queues=2)
        fill(shared.nameserver, topic, "broker-a", 1)
        with pytest.raises(NotDrained, match="group audit has not read 3 messages of queue 1"):
            admin.update_topic(topic, queues=1)
        plan = admin.plan("topic update", name=topic, queues=1, force=True)
        assert not plan.is_harmless
        assert plan.rows[0].note == "3 stored messages hidden from new groups and replays"
        admin.update_topic(topic, queues=1, force=True)
        assert counts(admin, topic) == {"broker-a": (1, 1)}
        assert admin.plan("topic update", name=topic, queues=4).is_harmless
        admin.update_topic(topic, queues=4)
        assert admin.describe_topic(topic).messages == 9  # nothing is lost by it


def test_a_broker_that_grows_is_changed_while_another_one_rejects(shared: LocalCluster) -> None:
    topic = "mixed"
    with Admin(shared.nameserver) as admin:
        admin.create_topic(topic, 2, brokers=["broker-a"])
        admin.create_topic(topic, 6, brokers=["broker-b"])
        fill(shared.nameserver, topic, "broker-b", 5)
        with pytest.raises(NotDrained, match="no group has read 3 messages of queue 5"):
            admin.update_topic(topic, queues=4)
        assert counts(admin, topic) == {"broker-a": (4, 4), "broker-b": (6, 6)}
        admin.update_topic(topic, queues=6)
        assert counts(admin, topic) == {"broker-a": (6, 6), "broker-b": (6, 6)}
