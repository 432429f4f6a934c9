"""Arguments of wrong types are rejected at once by name, not by an error from within."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from minimq import (
    Admin,
    Cluster,
    ConsumeResult,
    LocalCluster,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    SendInterceptor,
    WorkQueueConsumer,
    aio,
    by_consistent_hash,
    by_hash,
)
from minimq.arguments import waiting_s
from minimq.errors import Closed, InvalidArgument
from support.cases import for_each

TIMEOUT_S = 60.0

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
    "callback is a coroutine function, which would not be awaited": lambda producer, topic: producer.send_async(
        Message(topic, b"x"), callback=_wrong(_coroutine)
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
    "Unawaited.after_send is a coroutine function": lambda: Producer("127.0.0.1:1", interceptors=[Unawaited()]),
    "auto_commit is 'no': it must be True or False": lambda: PullConsumer("127.0.0.1:1", auto_commit=_wrong("no")),
    "orderly is 'no': it must be True or False": lambda: PushConsumer("127.0.0.1:1", group="g", orderly=_wrong("no")),
    "release_on_close is 'no': it must be True or False": lambda: WorkQueueConsumer(
        "127.0.0.1:1", group="g", release_on_close=_wrong("no")
    ),
    "request_timeout_s is -1: it must be above 0": lambda: WorkQueueConsumer(
        "127.0.0.1:1", group="g", request_timeout_s=-1
    ),
    "unknown option invisible: did you mean invisible_s": lambda: WorkQueueConsumer(
        "127.0.0.1:1", group="g", **_wrong({"invisible": 3})
    ),
    "unknown option max_delivery: did you mean max_deliveries": lambda: aio.WorkQueueConsumer(
        "127.0.0.1:1", group="g", **_wrong({"max_delivery": 3})
    ),
    "unknown option colour: WorkQueueConsumer has nameserver, group, invisible_s, ": lambda: WorkQueueConsumer(
        "127.0.0.1:1", group="g", **_wrong({"colour": 3})
    ),
    "each address must be text": lambda: Producer(_wrong(["127.0.0.1:1", 5])),
    "key is 5: it must be text": lambda: by_hash(_wrong(5)),
    "key is b'k': it must be text": lambda: by_consistent_hash(_wrong(b"k")),
    "key is .*: it must be text that UTF-8 can hold": lambda: by_consistent_hash("\ud800"),
    "timeout_s is '5': it must be a number": lambda: Admin("127.0.0.1:1", timeout_s=_wrong("5")),
    "brokers is '2': it must be a whole number from 1 to 26": lambda: LocalCluster(brokers=_wrong("2")),
}


def _wrong(value: Wrong) -> Wrong:
    return value


async def _coroutine(*_: object) -> None:
    raise AssertionError


def _plain(*_: object) -> ConsumeResult:
    return ConsumeResult.SUCCESS


class Unawaited(SendInterceptor):
    after_send = _wrong(_coroutine)


#: Each kind of consumer, with arguments by name.
CONSUMERS: list[Callable[..., Any]] = [
    PullConsumer,
    PushConsumer,
    WorkQueueConsumer,
    aio.PullConsumer,
    aio.PushConsumer,
    aio.WorkQueueConsumer,
    lambda *given, **named: PushConsumer(*given, mode="work_queue", **named),
]


@pytest.mark.parametrize("text", OF_PRODUCERS)
def test_of_producers(cluster: LocalCluster, topic: str, text: str) -> None:
    with Producer(cluster.nameserver) as producer, pytest.raises(InvalidArgument, match=text):
        OF_PRODUCERS[text](producer, topic)


@for_each("text", OF_CONSUMERS)
def test_of_consumers(text: str) -> None:
    with PullConsumer("127.0.0.1:1", group="g") as consumer, pytest.raises(InvalidArgument, match=text):
        OF_CONSUMERS[text](consumer)


@for_each("text", ELSEWHERE)
def test_elsewhere(text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        ELSEWHERE[text]()


@for_each("wrong", ["", 0, False, b"x"])
@for_each("consumer", CONSUMERS)
def test_an_id_that_names_nobody_is_rejected(consumer: Callable[..., object], wrong: Wrong) -> None:
    with pytest.raises(InvalidArgument, match=r"client id is empty|client_id is .*: it must be text"):
        consumer("127.0.0.1:1", group="g", client_id=wrong)


# ---- after close --------------------------------------------------------------------------------


async def _done(result: object) -> object:
    return await result if isinstance(result, Awaitable) else result


@for_each("is_subscribed", [False, True])
@for_each("consumer", CONSUMERS)
def test_a_closed_consumer_says_so_whatever_is_asked_of_it(consumer: Callable[..., Any], is_subscribed: bool) -> None:
    async def ask() -> None:
        async with Cluster("127.0.0.1:1") as cluster:
            closed = consumer(cluster, group="g")
            if is_subscribed:
                closed.subscribe("t")
            await _done(closed.close())
            listeners: dict[object, list[Any]] = {PushConsumer: [_plain], aio.PushConsumer: [_coroutine]}
            calls: dict[str, list[Any]] = {
                "subscribe": ["t"],
                "assign": [[]],
                "start": listeners.get(type(closed), []),
                "receive": [],
            }
            for name, arguments in calls.items():
                if method := getattr(closed, name, None):
                    with pytest.raises(Closed):
                        await _done(method(*arguments))

    asyncio.run(ask())


def test_a_producer_whose_cluster_is_closed_says_so_in_each_way_to_send(cluster: LocalCluster, topic: str) -> None:
    with Cluster(cluster.nameserver) as shared:
        producer = Producer(shared)
        producer.send(Message(topic, b"the route is known"))
    message = Message(topic, b"too late")
    for send in (
        producer.send,
        lambda message: producer.send_async(message).result(TIMEOUT_S),
        lambda message: producer.send_many([message]),
        lambda message: producer.send_many([message], queue=MessageQueue(topic, "broker-a", 0)),
    ):
        with pytest.raises(Closed):
            send(message)
    producer.close()


# ---- no time ------------------------------------------------------------------------------------


def test_a_timeout_below_zero_is_no_wait(cluster: LocalCluster, topic: str, new_name: Callable[[], str]) -> None:
    assert (waiting_s(-0.5), waiting_s(0.5)) == (0, 0.5)
    with PullConsumer(cluster.nameserver, group=new_name()) as pulling:
        pulling.subscribe(topic)
        assert pulling.poll(-1) == []
    with WorkQueueConsumer(cluster.nameserver, group=new_name()) as simple:
        simple.subscribe(topic)
        assert simple.receive(timeout=-1) == []
    pushing = PushConsumer(cluster.nameserver, group=new_name())
    pushing.subscribe(topic)
    pushing.start(_plain)
    pushing.close(-1)
    nobody = Producer("127.0.0.1:1")
    nobody.flush(-1)
    nobody.close(-1)
