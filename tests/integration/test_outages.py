"""An outage is a line in the log when it begins and one when it is over, however often is tried in between."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from minimq import Admin, ConsumeResult, LocalCluster, Message, Producer, PullConsumer, PushConsumer, ReceivedMessage
from minimq.local.server_process import ServerProcess
from support.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.fault]

TIMEOUT_S = 40.0
#: Connections that others begin before the server is started again.
MAX_DELIVERIES = 8


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, data_dir=tmp_path) as own:
        with Admin(own.nameserver) as admin:
            admin.create_topic("t", queues=2)
        yield own


@contextlib.contextmanager
def offline(server: ServerProcess) -> Iterator[None]:
    """Kill a server, run the block, and start the server again when others have tried to reach it several times."""
    host, _, port = server.address.partition(":")
    server.kill()
    with socket.create_server((host, int(port))) as listener:
        tried = threading.Semaphore(0)

        def reject() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()
                    tried.release()

        rejecting = threading.Thread(target=reject)
        rejecting.start()
        yield
        assert all(tried.acquire(timeout=TIMEOUT_S) for _ in range(MAX_DELIVERIES))
        listener.shutdown(socket.SHUT_RDWR)
        rejecting.join()
    server.start()


@contextlib.contextmanager
def consumers(cluster: LocalCluster, tmp_path: Path) -> Iterator[list[bytes]]:
    """Read the topic in a group and by broadcasting."""
    got: list[bytes] = []

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        got.extend(message.body for message in messages)
        return ConsumeResult.SUCCESS

    with (
        PushConsumer(cluster.nameserver, group="g") as grouped,
        PushConsumer(cluster.nameserver, group="b", client_id="b1", broadcast_dir=tmp_path / "offsets") as broadcast,
    ):
        for consumer in (grouped, broadcast):
            consumer.subscribe("t")
            consumer.start(listener)
        yield got


def outages(texts: list[str]) -> list[str]:
    """Return the lines about outages, without what differs from time to time."""
    lines = [text for text in texts if " reason=" in text or " outage_s=" in text]
    return [re.sub(r" (nameserver|address|reason)=.*|(?<=failures=)\d+ .*", "", line) for line in lines]


def test_a_name_server_that_was_offline_is_two_lines_of_each(
    cluster: LocalCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    [nameserver], [broker] = cluster.nameservers, cluster.brokers

    def watches() -> list[str]:
        return outages([record.getMessage() for record in caplog.records if record.name == "minimq.connection.routes"])

    with consumers(cluster, tmp_path), caplog.at_level(logging.INFO):
        with offline(nameserver):
            pass
        wait_until(lambda: watches().count("routes: watched") == 2, TIMEOUT_S)
        wait_until(lambda: broker.log_path.read_text().count(" registered ") == 2, TIMEOUT_S)
    assert 2 <= watches().count("routes: not watched, trying again") <= 4  # of each consumer, one for each reason
    assert all(int(attempts) > 1 for attempts in re.findall(r"routes: watched .*failures=(\d+)", caplog.text))
    logged = broker.log_path.read_text()
    assert 1 <= logged.count("not registered, trying again") <= 3  # one for each reason
    assert len(re.findall(r"WARNING .* registered nameserver=\S+ failures=\d+ outage_s=\d+\.\d", logged)) == 1


def test_a_broker_that_was_offline_is_two_lines_of_each(
    cluster: LocalCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    [broker] = cluster.brokers
    with consumers(cluster, tmp_path) as got, Producer(cluster.nameserver) as producer, caplog.at_level(logging.INFO):
        producer.send(Message("t", b"before"))
        wait_until(lambda: got.count(b"before") == 2, TIMEOUT_S)
        with offline(broker):
            sending = producer.send_async(Message("t", b"meanwhile"))
        sending.exception(TIMEOUT_S)
        wait_until(lambda: "group: session is back" in caplog.text, TIMEOUT_S)
        producer.send(Message("t", b"after"))
        wait_until(lambda: got.count(b"after") == 2, TIMEOUT_S)
    said = outages([record.getMessage() for record in caplog.records])
    assert said.count("group: session is broken, trying again broker=broker-a") == 1
    assert said.count("group: session is back broker=broker-a") == 1
    assert said.count("producer: broker does not answer broker=broker-a") <= 3  # one for each reason
    assert said.count("producer: broker answers broker=broker-a") == 1
    assert len(said) < MAX_DELIVERIES + 8, said


def test_polls_and_close_do_not_wait_long_for_a_broker_that_hangs(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(cluster.nameserver) as producer:
        producer.send_many([Message("t", b"body")] * 100)
    patient = PullConsumer(cluster.nameserver, group="patient", commit_interval_s=1e-3, request_timeout_s=60.0)
    other = PullConsumer(cluster.nameserver, group="other", commit_interval_s=1e-3, request_timeout_s=4.0)
    for consumer in (patient, other):
        consumer.subscribe("t")
        wait_until(lambda consumer=consumer: consumer.poll(0.1, max_messages=5), TIMEOUT_S)  # type: ignore[misc]
    cluster.brokers[0].pause()
    try:
        begun_at = time.monotonic()
        for _ in range(10):
            patient.poll(0.01, max_messages=1)
        assert time.monotonic() - begun_at < 30, "a poll has waited for the broker"
        wait_until(lambda: (other.poll(0.01, max_messages=1), "commit incomplete" in caplog.text)[1], TIMEOUT_S)
        begun_at = time.monotonic()
        other.close()
        assert time.monotonic() - begun_at < 30
        assert "last commit failed group=other" in caplog.text
    finally:
        cluster.brokers[0].resume()
    patient.close()
