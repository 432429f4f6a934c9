"""Code of the program that uses clients from where clients call it: handlers of the log, and callbacks of futures."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from minimq import Admin, Cluster, LocalCluster, Message, Producer, WorkQueueConsumer
from minimq.connection.client_log import client_logger, flush
from support.waiting import wait_until

TIMEOUT_S = 60


@contextmanager
def handling(handler: logging.Handler) -> Iterator[None]:
    """Let a handler have the records of all clients."""
    logger = logging.getLogger("minimq")
    logger.addHandler(handler)
    try:
        yield
    finally:
        flush()
        logger.removeHandler(handler)


@pytest.mark.fault
def test_a_handler_that_blocks_holds_up_no_client() -> None:
    is_called, may_return = threading.Event(), threading.Event()
    lines: list[str] = []

    class Blocking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            is_called.set()
            assert may_return.wait(TIMEOUT_S)
            lines.append(record.getMessage())

    with LocalCluster(brokers=2) as cluster, Cluster(cluster.nameserver) as connection:
        with Admin(connection) as admin:
            admin.create_topic("t", queues=1)
        with handling(Blocking()), Producer(connection) as producer:
            try:
                for _ in range(4):
                    producer.send(Message("t", b"x"))
                cluster.nameservers[0].kill()
                assert is_called.wait(TIMEOUT_S)  # the event loop has logged that
                cluster.brokers[0].kill()  # and the route will not change any more: sends go there, and log that
                for _ in range(10):
                    producer.send(Message("t", b"y"))
                assert lines == []
            finally:
                may_return.set()
    assert any("routes: not watched" in line for line in lines)
    assert any("broker does not answer" in line for line in lines)


@pytest.mark.parametrize("method", ["send", "send_async", "flush"])
def test_a_handler_that_waits_for_an_event_loop_does_not_deadlock_with_a_record_of_that_loop(
    cluster: LocalCluster, topic: str, method: str
) -> None:
    ours = client_logger("minimq.test")
    lines: list[str] = []

    with Producer(cluster.nameserver) as producer:
        producer.send(Message(topic, b"first"))
        connection = producer._core.client.connection

        class Sending(logging.Handler):  # `logging` holds its lock during `emit`
            def emit(self, record: logging.LogRecord) -> None:
                lines.append(record.getMessage())
                if record.getMessage() == "of the program":
                    connection.call_soon(ours.warning, "of the loop")
                    producer.send_async(Message(topic, b"x"))
                    if method == "flush":
                        producer.flush()
                    else:
                        getattr(producer, method)(Message(topic, b"x"))

        with handling(Sending()):
            ours.warning("of the program")
            wait_until(lambda: lines == ["of the program", "of the loop"])


def test_the_callback_of_an_acknowledgement_may_use_the_same_connection(
    cluster: LocalCluster, topic: str, group: str
) -> None:
    stored: list[object] = []
    with (
        Cluster(cluster.nameserver) as connection,
        Producer(connection) as producer,
        WorkQueueConsumer(connection, group=group) as consumer,
    ):
        consumer.subscribe(topic)
        producer.send(Message(topic, b"x"))
        messages = wait_until(lambda: consumer.receive(timeout=1.0))
        future = consumer.ack_async(messages)
        future.add_done_callback(lambda _: stored.append(producer.send(Message(topic, b"after")).status.name))
        future.result(TIMEOUT_S)
        wait_until(lambda: stored == ["SEND_OK"])
