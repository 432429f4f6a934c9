"""Clients that share a cluster: one thread, one set of channels, one watch; and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

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
    ReceivedMessage,
    WorkQueueConsumer,
    aio,
    errors,
)
from minimq.connection.connection import BrokerCalls, Connection
from minimq.connection.routes import RouteWatch
from minimq.consuming.queue_finder import QueueFinder
from minimq.consuming.range_reader import RangeReader
from minimq.features.transactions.decisions import Transaction
from minimq.features.transactions.transactions import RecordsSender, TransactionCommitter
from minimq_proto.v1 import broker_pb2
from support.listening import Listener
from support.reading import read_all
from support.waiting import wait_until

NOBODY = "127.0.0.1:9"


def loops() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "minimq-cluster"]


@pytest.fixture
def open_watches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Each time that a watch of routes is opened: how many are open then. One that ends is opened again."""
    streams: list[Any] = []
    counts: list[int] = []
    open_stream = RouteWatch._open

    def counted(watch: RouteWatch, nameserver: str) -> object:
        stream = open_stream(watch, nameserver)
        streams.append(stream)
        counts.append(sum(not each.done() for each in streams))
        return stream

    monkeypatch.setattr(RouteWatch, "_open", counted)
    return counts


def test_clients_that_share_a_cluster_have_one_thread_one_set_of_channels_and_one_watch(
    cluster: LocalCluster, topic: str, open_watches: list[int]
) -> None:
    before = len(loops())
    pushed = threading.Event()

    def listener(_: list[ReceivedMessage]) -> ConsumeResult:
        pushed.set()
        return ConsumeResult.SUCCESS

    with Cluster(cluster.nameserver) as shared:
        with (
            Admin(shared) as admin,
            Producer(shared) as producer,
            RecordsSender(shared) as sender,
            PullConsumer(shared, group=topic) as consumer,
            PushConsumer(shared, group=f"{topic}-push") as push,
            TransactionCommitter(shared) as committer,
        ):
            queue = producer.send(Message(topic, b"body")).queue
            consumer.subscribe(topic)
            push.subscribe(topic)
            push.start(listener)
            while not consumer.poll(1.0):
                pass
            assert pushed.wait(30)
            assert admin.describe_topic(topic).messages == 1
            assert sender.queues(topic)
            finder, ranges = QueueFinder(shared), RangeReader(shared)
            assert finder.find([topic]).queues[queue].end == 1
            assert ranges.bounds(queue) == (0, 1)
            committer.commit(Transaction(f"row-{topic}", 0), [topic], ())
            assert len(loops()) == before + 1
            connection = shared.connection
            assert list(connection._nameserver_channels._channels) == [(each, 0) for each in shared.nameservers]
            assert set(connection._broker_channels._channels) == {(broker.address, 0) for broker in cluster.brokers}
            assert max(open_watches) == 1
            finder.close()
            ranges.close()
        assert len(loops()) == before + 1, "a client has closed what it shares"
        with Admin(shared) as admin:
            assert topic in admin.list_topics()
    assert len(loops()) == before


def own_since(before: set[threading.Thread]) -> list[str]:
    return sorted(thread.name for thread in set(threading.enumerate()) - before)


def test_a_client_that_waits_has_one_thread(cluster: LocalCluster, topic: str) -> None:
    before = set(threading.enumerate())
    with Producer(cluster.nameserver) as producer, PushConsumer(cluster.nameserver, group=topic) as consumer:
        assert own_since(before) == []
        brokers = {producer.send(Message(topic, b"body", tag="other")).queue.broker_name for _ in range(8)}
        assert brokers == {"broker-a", "broker-b"}
        producer.send_many([Message(topic, b"body", tag="other")] * 100)
        producer.send_async(Message(topic, b"body", tag="other")).result(30)
        consumer.subscribe(topic, "wanted")
        listener = Listener()
        consumer.start(listener)
        wait_until(lambda: consumer.is_ready)
        assert own_since(before) == ["minimq-cluster", "minimq-cluster"]
        producer.send_async(Message(topic, b"body", tag="wanted"), callback=lambda *_: None)
        wait_until(lambda: listener.calls.total() == 1)
        assert own_since(before) == [
            *("minimq-cluster", "minimq-cluster", f"minimq-listener-{topic}-0", "minimq-producer-callbacks")
        ]
    wait_until(lambda: own_since(before) == [])


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


def sockets() -> int:
    """Return how many sockets this process has."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found += str(link.readlink()).startswith("socket:")
    return found


def test_closed_clients_that_somebody_still_has_hold_no_sockets(cluster: LocalCluster, topic: str) -> None:
    with Producer(cluster.nameserver) as producer:
        producer.send(Message(topic, b"body"))
    gc.collect()
    before = sockets()
    consumers = [PullConsumer(cluster.nameserver, group=f"{topic}-{number}") for number in range(5)]
    gc.disable()  # they are let go of by themselves, not by the collector
    try:
        for consumer in consumers:
            consumer.subscribe(topic)
            assert consumer.poll(30)
        assert sockets() >= before + len(consumers)
        for consumer in consumers:
            consumer.close()
        wait_until(lambda: sockets() <= before)
    finally:
        gc.enable()
    assert len({consumer.group for consumer in consumers}) == len(consumers)


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


def test_a_pull_consumer_revokes_its_queues_though_its_cluster_is_closed_and_a_queue_has_just_come(
    cluster: LocalCluster, admin: Admin, topic: str
) -> None:
    revoked: list[MessageQueue] = []
    shared = Cluster(cluster.nameserver)
    with Producer(cluster.nameserver) as producer:
        producer.send(Message(topic, b"body"))
    with PullConsumer(shared, group=topic, on_revoked=revoked.extend) as consumer:
        consumer.subscribe(topic)
        while not consumer.poll(1.0):
            pass
        admin.update_topic(topic, queues=16)
        queues = len(admin.describe_topic(topic).queues)
        wait_until(lambda: len(consumer.assignment) == queues, what="the new queues are assigned")
        shared.close()
        consumer.close()
        consumer.close()
    assert revoked


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


def test_a_consumer_that_ends_leaves_no_stream(cluster: LocalCluster, topic: str) -> None:
    def streams(shared: Cluster) -> list[str]:
        assert shared.connection._loop is not None
        names = [str(task.get_coro()) for task in asyncio.all_tasks(shared.connection._loop)]
        return [name for name in names if "Stream._run" in name]

    with Cluster(cluster.nameserver) as shared:
        with PullConsumer(shared) as reader, Admin(shared) as admin:
            reader.assign(admin.route(topic).read_queues())
            reader.poll(0.1)
            reader.assign([])
            assert streams(shared)
        wait_until(lambda: not streams(shared), what="the end of the streams of a reader without queues")
        dropped = [WorkQueueConsumer(shared, group=topic)]
        dropped[0].subscribe(topic)
        dropped[0].receive(timeout=0.1)
        assert streams(shared)
        dropped.clear()
        wait_until(lambda: not streams(shared), what="the end of the streams of a dropped consumer")


@pytest.mark.parametrize("mode", ["queues", "work_queue"])
def test_a_push_consumer_that_never_started_is_not_kept(
    cluster: LocalCluster, topic: str, mode: Literal["queues", "work_queue"]
) -> None:
    with Cluster(cluster.nameserver) as shared:
        PushConsumer(shared, group=topic, mode=mode).close()
        assert not shared.connection._at_end
        PushConsumer(shared, group=topic, mode=mode)
        wait_until(lambda: not shared.connection._at_end)


def test_nothing_begins_before_the_first_question() -> None:
    before = threading.active_count()
    with Cluster(NOBODY) as shared, Admin(shared):
        assert threading.active_count() == before
        assert shared.nameservers == (NOBODY,)
    with pytest.raises(errors.InvalidArgument, match="HOST:PORT"):
        Cluster("nowhere")


def test_a_cluster_that_is_dropped_ends(cluster: LocalCluster) -> None:
    gc.collect()
    before = len(loops())
    shared = Cluster(cluster.nameserver)
    with Admin(shared) as admin:
        admin.list_topics()
    del shared, admin
    gc.collect()
    wait_until(lambda: len(loops()) <= before)


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
                wait_until(lambda: not asyncio.all_tasks(loop))
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


@pytest.mark.parametrize("failure", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
def test_a_thread_that_could_not_start_is_started_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, failure: BaseException
) -> None:
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if isinstance(failure, KeyboardInterrupt):
            start(thread)  # Ctrl-C comes while its start is waited for
        raise failure

    before = len(loops())
    with Cluster(cluster.nameserver) as shared, Admin(shared) as admin:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            with pytest.raises(type(failure)):
                admin.list_topics()
        asked = threading.Thread(target=admin.list_topics, daemon=True)
        asked.start()
        asked.join(60)
        assert not asked.is_alive(), "the call hangs"
        wait_until(lambda: len(loops()) == before + 1)
    assert len(loops()) == before
