"""Clients that are dropped without being closed: their threads and connections end."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, PullConsumer, PushConsumer, SendReceipt, aio
from minimq.consuming.queue_finder import QueueFinder
from minimq.consuming.range_reader import RangeReader
from minimq.features.transactions.decisions import Transaction
from minimq.features.transactions.transactions import RecordsSender, TransactionCommitter
from minimq_common.batch.builder import BatchBuilder
from support.reading import read_all
from support.waiting import wait_until

MANY = 5
Use = Callable[[str, str], object]


def use_admin(nameserver: str, topic: str) -> object:
    admin = Admin(nameserver)
    admin.describe_topic(topic)
    return admin


def use_producer(nameserver: str, topic: str) -> object:
    producer = Producer(nameserver)
    producer.send(Message(topic, b"x"))
    return producer


def use_records_sender(nameserver: str, topic: str) -> object:
    sender = RecordsSender(nameserver)
    records = BatchBuilder(1 << 20)
    records.add([Message(topic, b"x")])
    sender.send(topic, None, records).result()
    return sender


def use_member(nameserver: str, topic: str) -> object:
    consumer = PullConsumer(nameserver, group=topic)
    consumer.subscribe(topic)
    consumer.poll(0.1)
    return consumer


def use_reader(nameserver: str, topic: str) -> object:
    consumer = PullConsumer(nameserver)
    consumer.assign(queues_of(nameserver, topic))
    consumer.poll(0.1)
    return consumer


def queues_of(nameserver: str, topic: str) -> list[MessageQueue]:
    with Admin(nameserver) as admin:
        return admin.route(topic).read_queues()


def use_unstarted_push(nameserver: str, topic: str) -> object:
    consumer = PushConsumer(nameserver, group=topic)
    consumer.subscribe(topic)
    return consumer


def use_ranges(nameserver: str, topic: str) -> object:
    ranges = RangeReader(nameserver)
    ranges.bounds(queues_of(nameserver, topic)[0])
    return ranges


def use_finder(nameserver: str, topic: str) -> object:
    finder = QueueFinder(nameserver)
    finder.find([topic])
    return finder


def use_committer(nameserver: str, topic: str) -> object:
    committer = TransactionCommitter(nameserver)
    committer.commit(Transaction(f"row-{topic}", 0), [topic], ())
    return committer


def use_aio_producer(nameserver: str, topic: str) -> object:
    async def use() -> object:
        producer = aio.Producer(nameserver)
        await producer.send(Message(topic, b"x"))
        return producer

    return asyncio.run(use())


def use_aio_consumer(nameserver: str, topic: str) -> object:
    async def use() -> object:
        consumer = aio.PullConsumer(nameserver, group=topic)
        consumer.subscribe(topic)
        await consumer.poll(0.1)
        return consumer

    return asyncio.run(use())


USES = {
    "minimq.Admin": use_admin,
    "minimq.Producer": use_producer,
    "minimq.RecordsSender": use_records_sender,
    "minimq.PullConsumer": use_member,
    "minimq.PullConsumer without a group": use_reader,
    "minimq.PushConsumer": use_unstarted_push,
    "minimq.RangeReader": use_ranges,
    "minimq.QueueFinder": use_finder,
    "minimq.TransactionCommitter": use_committer,
    "minimq.aio.Producer": use_aio_producer,
    "minimq.aio.PullConsumer": use_aio_consumer,
}


def own_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("minimq")}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_they_leave_no_thread(cluster: LocalCluster, topic: str, use: Use) -> None:
    gc.collect()
    before = own_threads()
    kept = [use(cluster.nameserver, topic) for _ in range(MANY)]
    kept.clear()
    gc.collect()
    wait_until(lambda: own_threads() <= before, 60.0, what="the end of all threads")


def test_what_was_handed_in_is_still_sent_and_its_future_answered(cluster: LocalCluster, topic: str) -> None:
    def send() -> list[Future[SendReceipt]]:
        producer = Producer(cluster.nameserver, send_timeout_s=60.0)  # a late answer is one too
        futures = [producer.send_async(Message(topic, b"%d" % number)) for number in range(500)]
        del producer
        gc.collect()
        return futures

    futures = send()
    for future in futures:
        future.result(60.0)
    assert len(read_all(cluster.nameserver, topic)) == 500


def test_a_consumer_that_is_dropped_commits_nothing_and_leaves_its_queues_to_others(
    cluster: LocalCluster, topic: str
) -> None:
    with Producer(cluster.nameserver) as producer:
        producer.send_many([Message(topic, b"x")] * 10)

    def read_some() -> int:
        consumer = PullConsumer(cluster.nameserver, group=topic)
        consumer.subscribe(topic)
        while not (messages := consumer.poll(0.5)):
            pass
        del consumer
        gc.collect()
        return len(messages)

    assert read_some()
    with PullConsumer(cluster.nameserver, group=topic) as other:
        other.subscribe(topic)
        left = 10
        while left:
            left -= len(other.poll(1.0))
