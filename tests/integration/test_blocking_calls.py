"""Blocking calls where they would wait for themselves: on a client's event loop, and in callbacks of a producer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import pytest

from minimq import (
    Admin,
    Cluster,
    ConsumeResult,
    LocalCluster,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SendInterceptor,
    WorkQueueConsumer,
)
from minimq.errors import UsageError
from support.waiting import wait_until

TIMEOUT_S = 30.0
#: Calls of a producer that wait.
SENDS: dict[str, Callable[[Producer, str], object]] = {
    "send": lambda producer, topic: producer.send(Message(topic, b"x")),
    "send_many": lambda producer, topic: producer.send_many([Message(topic, b"x")]),
    "request": lambda producer, topic: producer.request(Message(topic, b"x"), timeout=TIMEOUT_S),
    "flush": lambda producer, _: producer.flush(),
}


def outcome_of(call: Callable[[], object], report: Future[str]) -> None:
    """Report the error of a call, or its result."""
    try:
        report.set_result(repr(call()))
    except UsageError as error:
        report.set_result(error.message)


def test_the_event_loop_of_a_client_rejects_them(cluster: LocalCluster, topic: str) -> None:
    with (
        Cluster(cluster.nameserver) as shared,
        Producer(shared) as producer,
        Admin(shared) as admin,
        PullConsumer(shared, group=f"{topic}-pull") as pull,
        WorkQueueConsumer(shared, group=f"{topic}-simple") as simple,
        PushConsumer(shared, group=f"{topic}-push") as push,
    ):
        for consumer in (pull, simple, push):
            consumer.subscribe(topic)
        producer.send(Message(topic, b"x"))
        calls: dict[str, Callable[[], object]] = {
            **{name: partial(call, producer, topic) for name, call in SENDS.items()},
            "result": lambda: producer.send_async(Message(topic, b"x")).result(TIMEOUT_S),
            "exception": lambda: producer.send_async(Message(topic, b"x")).exception(TIMEOUT_S),
            "list_topics": admin.list_topics,
            "poll": lambda: pull.poll(TIMEOUT_S),
            "commit": pull.commit,
            "receive": lambda: simple.receive(timeout=TIMEOUT_S),
            "start": lambda: push.start(lambda _: ConsumeResult.SUCCESS),
        }
        for name, call in calls.items():
            report: Future[str] = Future()
            shared.connection.call_soon(outcome_of, call, report)
            assert "the event loop thread of a client" in report.result(TIMEOUT_S), name
        shared.connection.call_soon(producer.send_one_way, Message(topic, b"y"))  # does not wait
        wait_until(lambda: producer.statistics().acknowledged == 4)


@pytest.mark.parametrize("name", [*SENDS, "close"])
@pytest.mark.parametrize("interceptors", [(), (SendInterceptor(),)], ids=["plain", "intercepted"])
def test_a_callback_of_a_producer_rejects_them(
    cluster: LocalCluster, topic: str, name: str, interceptors: tuple[SendInterceptor, ...]
) -> None:
    report: Future[str] = Future()
    with Producer(cluster.nameserver, interceptors=interceptors) as producer:
        calls = {**SENDS, "close": lambda producer, _: producer.close()}
        producer.send_async(
            Message(topic, b"x"), callback=lambda *_: outcome_of(partial(calls[name], producer, topic), report)
        )
        assert "a callback or an interceptor of the producer" in report.result(TIMEOUT_S)
        producer.send(Message(topic, b"y"))
