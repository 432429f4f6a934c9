"""Clients that share a cluster: one thread, one set of channels, one watch; and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from queue import SimpleQueue
from typing import Any

import pytest

from minimq import Admin, Cluster, LocalCluster, Message, Producer, PullConsumer, aio, errors
from minimq.connection.connection import BrokerCalls, Connection
from minimq_proto.v1 import broker_pb2
from support.reading import read_all
from support.waiting import wait_until

NOBODY = "127.0.0.1:9"


def loops() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "minimq-cluster"]


def test_plain_clients_and_those_of_asyncio_share_one(cluster: LocalCluster, topic: str) -> None:
    before = len(loops())

    async def use() -> None:
        async with aio.Cluster(cluster.nameserver) as shared:
            async with aio.Producer(shared) as producer, aio.PullConsumer(shared, group=topic) as consumer:
                await producer.send(Message(topic, b"body"))
                consumer.subscribe(topic)
                while not await consumer.poll(1.0):
                    pass
                assert len(loops()) == before + 1
            with Admin(shared) as admin:
                assert (await asyncio.to_thread(admin.describe_topic, topic)).messages == 1
        assert len(loops()) == before

    assert aio.Cluster is Cluster
    asyncio.run(use())


def test_topics_are_watched_until_the_last_client_that_uses_them_closes(cluster: LocalCluster, topic: str) -> None:
    with Cluster(cluster.nameserver) as shared:
        table = shared.connection.routes
        with Producer(shared) as kept:
            with PullConsumer(shared, group=topic) as second, Producer(shared) as first:
                first.send(Message(topic, b"body"))
                second.subscribe(topic)
                assert second.poll(30)
                assert topic in table.watched()
            wait_until(lambda: table.watched() == [])
            assert table.known.get(topic) is None
            with Producer(shared) as other:
                other.send(Message(topic, b"body"))
                kept.send(Message(topic, b"body"))
            assert table.watched() == [topic]
            kept.send(Message(topic, b"body"))
        wait_until(lambda: table.watched() == [])


def test_a_cluster_that_is_closed_first_ends_the_calls_of_its_clients(cluster: LocalCluster, topic: str) -> None:
    threads = set(threading.enumerate())
    shared = Cluster(cluster.nameserver)
    producer, consumer, admin = Producer(shared), PullConsumer(shared, group=topic), Admin(shared)
    queue = producer.send(Message(topic, b"body")).queue
    consumer.subscribe(topic)
    consumer.poll(0.1)
    shared.close()
    shared.close()
    for use in (admin.list_topics, lambda: admin.offset_at(queue, "-1h"), lambda: admin.route(topic)):
        with pytest.raises(errors.Closed):
            use()
    with pytest.raises(errors.MinimqError):
        producer.send(Message(topic, b"body"))
    for client in (producer, consumer, admin):
        client.close()
    assert set(threading.enumerate()) <= threads


def test_a_poll_that_waits_ends_with_its_cluster(cluster: LocalCluster, topic: str) -> None:
    shared, failures = Cluster(cluster.nameserver), SimpleQueue[Exception]()
    consumer = PullConsumer(shared, group=topic)
    consumer.subscribe(topic)
    wait_until(lambda: consumer.poll(0.1) or consumer.is_ready)

    def poll() -> None:
        try:
            consumer.poll(300)
        except errors.MinimqError as error:
            failures.put(error)

    polling = threading.Thread(target=poll, daemon=True)
    polling.start()
    wait_until(lambda: shared.connection.awaited)
    shared.close()
    assert isinstance(failures.get(timeout=30), errors.Closed)


def test_what_is_handed_in_has_an_outcome_however_soon_the_cluster_is_closed(cluster: LocalCluster, topic: str) -> None:
    for _ in range(20):
        shared = Cluster(cluster.nameserver)
        with Admin(shared) as admin:
            admin.route(topic)
        producer = Producer(shared)
        producer._core._routes.route(topic)
        futures = [producer.send_async(Message(topic, b"body")) for _ in range(3)]
        shared.close()
        for future in futures:
            assert isinstance(future.exception(30), errors.MinimqError | None)
        assert producer.statistics().buffered_messages == 0
        producer.close()


def test_a_call_under_way_ends_when_its_client_closes_and_that_of_another_client_does_not(
    monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()
    call = BrokerCalls.call

    async def hang(self: BrokerCalls, *arguments: Any) -> Any:
        hangs.set()
        await asyncio.to_thread(goes_on.wait, 30)
        return await call(self, *arguments)

    monkeypatch.setattr(BrokerCalls, "call", hang)
    outcomes: dict[str, object] = {}

    def ask(name: str, admin: Admin) -> None:
        try:
            outcomes[name] = len(admin.broker_status())
        except errors.MinimqError as error:
            outcomes[name] = type(error)

    with Cluster(cluster.nameserver) as shared, Admin(shared) as stays:
        leaves = Admin(shared)
        threads = [threading.Thread(target=ask, args=item) for item in (("stays", stays), ("leaves", leaves))]
        for thread in threads:
            thread.start()
        assert hangs.wait(30)
        wait_until(lambda: len(stays._client.under_way) == len(leaves._client.under_way) == 1)
        leaves.close()
        threads[1].join(30)
        assert outcomes == {"leaves": errors.Closed}
        goes_on.set()
        threads[0].join(30)
    assert outcomes["stays"] == len(cluster.brokers)


def test_many_calls_at_once_answer_by_key_and_name_each_failure(cluster: LocalCluster, topic: str) -> None:
    there = cluster.brokers[0].address
    addresses: dict[object, str] = dict.fromkeys(range(300), there)
    addresses["nobody"] = NOBODY
    requests: dict[object, broker_pb2.DescribeTopicRequest] = {
        key: broker_pb2.DescribeTopicRequest(topic=topic) for key in addresses if key != 7
    }
    requests[8] = broker_pb2.DescribeTopicRequest(topic="never")
    with Admin(cluster.nameserver) as admin:
        began = time.monotonic()
        answers, failures = admin._client.call_all(addresses, lambda stub: stub.DescribeTopic, requests, reconnect_s=0)
        assert time.monotonic() - began < 30
    assert list(answers) == [number for number in range(300) if number not in (7, 8)]
    assert {key: type(error) for key, error in failures.items()} == {
        8: errors.TopicNotFound,
        "nobody": errors.Unavailable,
    }
    assert {answer.topic.topic for answer in answers.values()} == {topic}


@pytest.mark.fault
def test_a_silent_broker_is_asked_once_for_all_clients_until_it_answers(cluster: LocalCluster) -> None:
    broker = cluster.brokers[0]
    with contextlib.closing(Connection([cluster.nameserver])) as connection:
        health = connection.health
        broker.pause()
        try:
            for _ in range(3):
                health.failed(broker.address, errors.Unavailable("the connection broke"))
            wait_until(lambda: len(health._questions) == 1)
            assert health.is_silent(broker.address)
            assert not health.is_silent(NOBODY)
        finally:
            broker.resume()
        wait_until(lambda: not health.is_silent(broker.address))
        wait_until(lambda: not health._questions)
    health.failed(broker.address, errors.Unavailable("the connection broke"))
    assert not health.is_silent(broker.address), "nobody would find out that it answers"


# ---- ends that nobody has planned -------------------------------------------------------------------


def test_an_interrupt_ends_a_call_and_leaves_no_task() -> None:
    """As Ctrl-C does, by another signal: that one is for whoever runs the tests."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    interrupted = threading.Event()
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            with Cluster(address) as shared, Admin(shared, timeout_s=60) as admin:

                def wait_for_the_call() -> None:
                    with silent.accept()[0]:
                        os.kill(os.getpid(), signal.SIGUSR1)
                        interrupted.wait(30)

                asked = threading.Thread(target=wait_for_the_call)
                asked.start()
                with pytest.raises(KeyboardInterrupt):
                    admin.list_topics()
                interrupted.set()
                asked.join()
                wait_until(lambda: not admin._client.under_way)
                loop = shared.connection._loop
                assert loop is not None
                wait_until(lambda: len(asyncio.all_tasks(loop)) == 1, what="the end of all tasks but that of the loop")
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_process_that_ends_with_open_clients_sends_the_messages_of_its_producers(
    cluster: LocalCluster, topic: str
) -> None:
    program = f"""
from minimq import Admin, Cluster, Message, Producer, PullConsumer
shared = Cluster({cluster.nameserver!r})
producer, consumer = Producer(shared), PullConsumer(shared, group={topic!r})
alone = Producer({cluster.nameserver!r})
for each in (producer, alone):
    each.send(Message({topic!r}, b"body"))
consumer.subscribe({topic!r})
while not consumer.poll(1.0):
    pass
admin = Admin(shared)
admin.list_topics()
for number in range(500):
    alone.send_async(Message({topic!r}, b"%d" % number))
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert len(read_all(cluster.nameserver, topic)) == 502


def test_a_client_that_closes_is_no_error_in_the_loops_of_others(cluster: LocalCluster, topic: str) -> None:
    """In a process of its own, where gRPC reports to the loops of these clients only."""
    program = f"""
import asyncio, threading, grpc.aio
from minimq import Message, Producer, PullConsumer

def serve(loop):
    asyncio.set_event_loop(loop)
    loop.run_until_complete(watch())

async def watch():  # a loop of the user's own
    async with grpc.aio.insecure_channel({cluster.nameserver!r}) as channel:
        await channel.channel_ready()
        begun.set()
        while not over.is_set():
            await asyncio.sleep(0.01)

begun, over = threading.Event(), threading.Event()
thread = threading.Thread(target=serve, args=(asyncio.new_event_loop(),))
thread.start()
begun.wait()
with Producer({cluster.nameserver!r}) as producer:
    for _ in range(10):
        with PullConsumer({cluster.nameserver!r}, group={topic!r}) as consumer:
            consumer.subscribe({topic!r})
            producer.send(Message({topic!r}, b"body"))
            consumer.poll(timeout=0.2)
over.set()
thread.join()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
