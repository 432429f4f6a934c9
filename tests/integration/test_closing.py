"""Closing clients from several threads, and after their `Cluster`."""

from __future__ import annotations

import threading
from typing import Literal

import pytest

from minimq import ConsumeResult, LocalCluster, Message, Producer, PushConsumer

TIMEOUT_S = 40.0
#: Enough for a call that wrongly returns at once; one that waits is not measured by it.
_AT_ONCE_S = 0.3


@pytest.mark.parametrize("mode", ["queues", "work_queue"])
def test_a_second_close_waits_for_the_first(
    cluster: LocalCluster, producer: Producer, topic: str, group: str, mode: Literal["queues", "work_queue"]
) -> None:
    producer.send(Message(topic, b"x"))
    begun, go_on = threading.Event(), threading.Event()
    events: list[str] = []

    def listen(_: object) -> ConsumeResult:
        begun.set()
        go_on.wait(TIMEOUT_S)
        events.append("listener")
        return ConsumeResult.SUCCESS

    def close() -> None:
        consumer.close(TIMEOUT_S)
        events.append("closed")

    consumer = PushConsumer(cluster.nameserver, group=group, mode=mode)
    consumer.subscribe(topic)
    consumer.start(listen)
    assert begun.wait(TIMEOUT_S)
    closers = [threading.Thread(target=close) for _ in range(3)]
    for closer in closers:
        closer.start()
    closers[-1].join(_AT_ONCE_S)
    go_on.set()
    for closer in closers:
        closer.join(TIMEOUT_S)
    consumer.close()
    assert events == ["listener", "closed", "closed", "closed"]
