"""Arguments of wrong types are refused at once by name, not by an error from within."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minimq import (
    Admin,
    Cluster,
    LocalCluster,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    by_consistent_hash,
    by_hash,
)
from minimq.errors import Closed, InvalidArgument

#: Of a type that no annotation allows.
Wrong = Any

OF_PRODUCERS: dict[str, Callable[[Producer, str], object]] = {
    "the message is None: give a minimq.Message": lambda producer, topic: producer.send(_wrong(None)),
    "the message is a str: give a minimq.Message": lambda producer, topic: producer.send_async(_wrong("orders")),
    "messages is a Message: give an iterable of messages": lambda producer, topic: producer.send_many(
        _wrong(Message(topic, b"x"))
    ),
    "queue has an int: give a MessageQueue": lambda producer, topic: producer.send(
        Message(topic, b"x"), queue=_wrong(3)
    ),
    "selector is 5: it must be a function": lambda producer, topic: producer.send(
        Message(topic, b"x"), selector=_wrong(5)
    ),
    "callback is 5: it must be a function": lambda producer, topic: producer.send_async(
        Message(topic, b"x"), callback=_wrong(5)
    ),
    "timeout is '1': it must be a number": lambda producer, topic: producer.flush(_wrong("1")),
    "timeout is nan: it must be a number": lambda producer, topic: producer.close(float("nan")),
}

OF_CONSUMERS: dict[str, Callable[[PullConsumer], object]] = {
    "where is an int: give the text": lambda consumer: consumer.subscribe("t", where=_wrong(5)),
    "queues is a MessageQueue: give an iterable": lambda consumer: consumer.assign(_wrong(MessageQueue("t", "b", 0))),
    "queues has a str: give a MessageQueue": lambda consumer: consumer.assign(_wrong("orders")),
    "queues is an int: give an iterable": lambda consumer: consumer.pause(_wrong(5)),
    "offsets is a list: give a mapping": lambda consumer: consumer.commit(_wrong([1])),
    "offsets has a str: give a MessageQueue": lambda consumer: consumer.commit(_wrong({"q": 1})),
}

ELSEWHERE: dict[str, Callable[[], object]] = {
    "options is 5: give options by name": lambda: Producer("127.0.0.1:1", _wrong(5)),
    "each address must be text": lambda: Producer(_wrong(["127.0.0.1:1", 5])),
    "key is an int: give text": lambda: by_hash(_wrong(5)),
    "key is bytes: give text|key is a bytes: give text": lambda: by_consistent_hash(_wrong(b"k")),
    "timeout_s is '5': it must be a number": lambda: Admin("127.0.0.1:1", timeout_s=_wrong("5")),
    "brokers is '2': it must be a whole number from 1 to 26": lambda: LocalCluster(brokers=_wrong("2")),
}


def _wrong(value: Wrong) -> Wrong:
    return value


@pytest.mark.parametrize("text", OF_PRODUCERS)
def test_of_producers(cluster: LocalCluster, topic: str, text: str) -> None:
    with Producer(cluster.nameserver) as producer, pytest.raises(InvalidArgument, match=text):
        OF_PRODUCERS[text](producer, topic)


@pytest.mark.parametrize("text", OF_CONSUMERS)
def test_of_consumers(text: str) -> None:
    with PullConsumer("127.0.0.1:1", group="g") as consumer, pytest.raises(InvalidArgument, match=text):
        OF_CONSUMERS[text](consumer)


@pytest.mark.parametrize("text", ELSEWHERE)
def test_elsewhere(text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        ELSEWHERE[text]()


def test_of_admins(admin: Admin, topic: str) -> None:
    with pytest.raises(InvalidArgument, match="permission is 'read': give a Permission"):
        admin.update_topic(topic, permission=_wrong("read"))


def test_a_closed_consumer_says_so() -> None:
    with Cluster("127.0.0.1:1") as cluster:
        consumer = PullConsumer(cluster, group="g")
        consumer.close()
        with pytest.raises(Closed):
            consumer.subscribe("t")
