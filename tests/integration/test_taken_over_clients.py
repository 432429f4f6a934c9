"""A consumer that starts with the client id of another one takes over at once, and the former is fenced."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from minimq import LocalCluster, Message, Producer, PullConsumer, PushConsumer, WorkQueueConsumer
from minimq.errors import Fenced
from minimq_proto.v1 import broker_pb2
from support.raw_member import RawMember
from support.waiting import wait_until

TIMEOUT_S = 60.0

pytestmark = pytest.mark.system


class Pull:
    """A pull consumer."""

    def __init__(self, nameserver: str, topic: str, group: str) -> None:
        self.consumer: Any = self.made(nameserver, group=group, client_id="worker-0")
        self.bodies: list[bytes] = []
        self.consumer.subscribe(topic)

    made: Callable[..., Any] = PullConsumer

    def has(self, body: bytes) -> bool:
        self.bodies += [message.body for message in self.consumer.poll(0.1)]
        return body in self.bodies

    def error(self) -> Exception | None:
        return error_of(self.consumer.poll) and error_of(self.consumer.commit)


class Work(Pull):
    """A consumer of a work queue."""

    made = WorkQueueConsumer

    def has(self, body: bytes) -> bool:
        messages = self.consumer.receive(10, timeout=0.1)
        self.bodies += [message.body for message in messages]
        if body != b"first":
            self.consumer.ack(messages)
        return body in self.bodies

    def error(self) -> Exception | None:
        return error_of(lambda: self.consumer.receive(timeout=0.1))


class Push(Pull):
    """A push consumer."""

    made = PushConsumer

    def __init__(self, nameserver: str, topic: str, group: str) -> None:
        super().__init__(nameserver, topic, group)
        self.consumer.start(lambda messages: self.bodies.extend(each.body for each in messages))

    def has(self, body: bytes) -> bool:
        return body in self.bodies

    def error(self) -> Exception | None:
        return self.consumer.error  # type: ignore[no-any-return]


class PushWork(Push):
    """A push consumer of a work queue."""

    def made(self, *arguments: Any, **options: Any) -> PushConsumer:  # type: ignore[override]
        return PushConsumer(*arguments, **options, mode="work_queue")


@pytest.mark.parametrize("kind", [Pull, Work, Push, PushWork])
def test_the_newcomer_takes_over_and_the_former_is_fenced(
    cluster: LocalCluster, topic: str, group: str, kind: type[Pull]
) -> None:
    former = kind(cluster.nameserver, topic, group)
    with former.consumer, Producer(cluster.nameserver) as producer:
        producer.send(Message(topic, b"first"))
        wait_until(lambda: former.has(b"first"), TIMEOUT_S)
        newcomer = kind(cluster.nameserver, topic, group)
        with newcomer.consumer:
            wait_until(lambda: newcomer.has(b"") or isinstance(former.error(), Fenced), TIMEOUT_S)
            producer.send(Message(topic, b"second"))
            wait_until(lambda: newcomer.has(b"second"), TIMEOUT_S)
            assert b"second" not in former.bodies
            assert isinstance(former.error(), Fenced)
            assert "another consumer has started with client id 'worker-0'" in str(former.error())
        assert b"first" in newcomer.bodies or kind is not Work  # what the former had in flight comes again


def test_an_older_consumer_that_connects_later_does_not_take_over(
    cluster: LocalCluster, topic: str, group: str
) -> None:
    older, newer = (Work(cluster.nameserver, topic, group) for _ in range(2))
    with older.consumer, newer.consumer, Producer(cluster.nameserver) as producer:
        for body in (b"1", b"2"):
            producer.send(Message(topic, body))
            wait_until(partial(newer.has, body), TIMEOUT_S)
            wait_until(older.error, TIMEOUT_S)
    address, joins = cluster.brokers[0].address, broker_pb2.JoinGroup(group=f"{group}-2", topics=[topic])
    joins.allocation = "averagely"
    with RawMember(address, "worker-0") as second, RawMember(address, "worker-0") as first:
        second.say(run=2, join=joins)
        second.hear("members")
        first.say(run=1, join=joins)
        assert isinstance(first.ended.get(timeout=TIMEOUT_S), Fenced)
        second.say(heartbeat=broker_pb2.Heartbeat(number=1))
        second.hear("heartbeat")


def error_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Fenced as error:
        return error
    return None
