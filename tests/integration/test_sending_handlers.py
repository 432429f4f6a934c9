"""Code of the program that uses clients from where clients call it: handlers of the log, and callbacks of futures."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from minimq import Admin, Cluster, LocalCluster, Message, Producer, WorkQueueConsumer
from minimq.connection.client_log import client_logger, flush
from support.waiting import wait_until

TIMEOUT_S = 60
#: All records of the process are sent, also those that clients make meanwhile.
PROGRAM = """
import logging, os, sys
from minimq import Cluster, ConsumeResult, Message, Producer, PushConsumer

address, topic, level, kind, method = sys.argv[1:]
nameserver = Cluster(address) if kind == "shared" else address
producer = Producer(nameserver)


class Sending(logging.Handler):
    def emit(self, record):
        getattr(producer, method)(Message(topic, record.getMessage().encode()[:500] or b" "))


logging.root.addHandler(Sending())
logging.root.setLevel(level)
logging.warning("hello")
consumer = PushConsumer(nameserver, group=topic)
consumer.subscribe(topic)
consumer.start(lambda messages: ConsumeResult.SUCCESS)
producer.flush()
logging.root.handlers.clear()
consumer.close()
producer.close()
if kind == "shared":
    nameserver.close()
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("kind", ["shared", "own"])
@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
@pytest.mark.parametrize("method", ["send", "send_async"])
def test_a_handler_of_the_log_may_send(cluster: LocalCluster, topic: str, level: str, kind: str, method: str) -> None:
    run(PROGRAM, cluster.nameserver, topic, level, kind, method)


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


END = """
import logging, sys
from minimq import Admin
from minimq.connection.client_log import client_logger
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
log = client_logger("minimq.test")
admin = Admin(sys.argv[1])
admin.list_topics()
for number in range(20):
    admin._client.connection.call_soon(log.info, str(number))
admin.list_topics()
"""


def test_what_an_event_loop_has_logged_at_the_end_of_the_process_is_handled(cluster: LocalCluster) -> None:
    done = run(END, cluster.nameserver)
    assert done.stdout.split() == [str(number) for number in range(20)]
