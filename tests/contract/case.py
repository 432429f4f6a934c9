"""One case of a scenario: a face, a kind of consumer and a cluster, with short names for what scenarios do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from contract.receivers import KINDS, Face
from contract.topologies import Topology
from minimq import Admin, Message, MessageQueue, SendReceipt
from minimq.errors import NoPermission, QueueNotFound, TopicNotFound
from support.reading import read_all
from support.waiting import wait_until


class Case:
    """The argument of a scenario. Clients that it makes are closed with it."""

    def __init__(self, face: Face, kind: str, topology: Topology, new_name: Callable[[], str]) -> None:
        self.face, self.kind, self.topology, self.new_name = face, kind, topology, new_name
        self.nameserver = topology.cluster.nameserver
        self.clients = ExitStack()
        self.admin: Admin = self.clients.enter_context(Admin(self.nameserver))
        self._producer: Any = None

    # ---- given ----------------------------------------------------------------------------------

    def topic(self, queues: int = 1, **settings: Any) -> str:
        """Make a topic."""
        self.admin.create_topic(name := self.new_name(), queues=queues, **settings)
        return name

    @property
    def producer(self) -> Any:
        """A producer, the same at each use."""
        if self._producer is None:
            self._producer = self.make("Producer")
        return self._producer

    def make(self, client: str, **options: Any) -> Any:
        """Make any other client of the face."""
        made = self.face.make(client, self.nameserver, **options)
        return self.clients.enter_context(made)

    # ---- when -----------------------------------------------------------------------------------

    def send(self, topic: str, *bodies: bytes, **fields: Any) -> list[SendReceipt]:
        """Send messages with the same fields, one after the other."""
        return [self.producer.send(Message(topic, body, **fields)) for body in bodies]

    def messages(self, topic: str, *bodies: bytes) -> list[Message]:
        return [Message(topic, body) for body in bodies]

    def sent(self, topic: str, body: bytes) -> bool:
        """Send a message, unless the producer's route is not up to date."""
        try:
            self.send(topic, body)
        except (TopicNotFound, NoPermission):
            return False
        return True

    def send_to(self, topic: str, queue_id: int, body: bytes) -> MessageQueue:
        """Send one message to a queue, once the producer knows it; return the queue."""
        queue = MessageQueue(topic, "broker-a", queue_id)

        def sent() -> bool:
            with suppress(QueueNotFound):
                self.producer.send(Message(topic, body), queue=queue)
                return True
            return False

        wait_until(sent, what=f"{queue} known")
        return queue

    def receiver(self, *topics: str, group: str = "", tags: str = "*", where: str | None = None, **options: Any) -> Any:
        """Make a consumer of the case's kind."""
        subscriptions: Sequence[tuple[Any, ...]] = [(topic, tags, where) for topic in topics]
        group = group or self.new_name()
        made = KINDS[self.kind](self.face, self.nameserver, subscriptions, group=group, **options)
        return self.clients.enter_context(made)

    def disturb(self) -> None:
        """A slave, or the master, is killed, where there are any."""
        self.topology.disturb()

    def assigned(self, receiver: Any) -> int:
        """Return how many queues a member has."""
        self.poll(receiver)
        return len(receiver.consumer.assignment)

    def poll(self, receiver: Any) -> None:
        """Take messages if there are any, as a consumer does that waits for some."""
        if self.kind != "listener":
            (receiver.consumer.poll if self.kind == "pull" else receiver.consumer.receive)(timeout=0.5)

    def members(self, group: str) -> int:
        """Return how many members a group has."""
        return len(self.admin.describe_group(group).members)

    def poll_as_other_kind(self, topic: str, group: str) -> None:
        """Take messages of the group in the other way: of leased queues, or of the work queue. Raises its error."""
        other = "PullConsumer" if self.kind == "work_queue" else "WorkQueueConsumer"
        consumer = self.make(other, group=group)
        consumer.subscribe(topic)
        (consumer.poll if other == "PullConsumer" else consumer.receive)(timeout=30.0)

    def start(self, receiver: Any) -> None:
        """Return when the receiver's positions are fixed."""
        if self.kind == "work_queue":
            receiver.consumer.start()
        elif self.kind == "pull":
            assert receiver.consumer.poll(timeout=1.0) == []
        wait_until(lambda: self.kind == "work_queue" or receiver.consumer.is_ready, what="a ready consumer")

    # ---- then -----------------------------------------------------------------------------------

    def stored(self, topic: str) -> list[bytes]:
        """Return the bodies of a topic, queue by queue, in the order of each."""
        return bodies(read_all(self.nameserver, topic))

    def dead_letters(self, group: str) -> list[Any]:
        """Return the dead letters of a group, once there are any."""
        return wait_until(lambda: list(self.admin.dead_letters(group)), what="dead letters")

    def check_at_end(self, topic: str, receiver: Any, *ends: bytes) -> None:
        """Fail unless the next message that comes is one that is sent now: all others are done."""
        self.send(topic, *(ends or (b"end",)))
        last = receiver.take(len(ends) or 1)
        assert bodies(last) == list(ends or (b"end",))
        receiver.finish(last)

    def close(self) -> None:
        self.clients.close()


def bodies(messages: Sequence[Any]) -> list[bytes]:
    """Return the bodies of messages."""
    return [message.body for message in messages]
