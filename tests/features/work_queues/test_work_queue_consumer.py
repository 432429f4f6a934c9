"""The work queue consumer, plain and for asyncio: a work queue at real brokers."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import re
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, WorkQueueConsumer, aio
from minimq.admin.master_client import MasterClient
from minimq.errors import (
    Closed,
    CorruptBatch,
    CorruptEntry,
    GroupConflict,
    GroupNotFound,
    HandleExpired,
    InvalidArgument,
    MinimqError,
    QueueNotFound,
    TopicNotFound,
)
from minimq_common.batch.header import DIRECTORY, HEADER_BYTES, MAX_METADATA
from minimq_common.model import BrokerData
from support.chance import SEED
from support.command import environment
from support.waiting import wait_until

T = TypeVar("T")

CANCELLATIONS = 400
CROWD = Path(__file__).parents[2] / "support" / "worker_crowd.py"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, data_dir=tmp_path_factory.mktemp("simple")) as cluster:
        yield cluster


@pytest.fixture
def topic(pair: LocalCluster, new_name: Callable[[], str]) -> str:
    """Return a topic with one queue on each of two brokers."""
    name = new_name()
    with Admin(pair.nameserver) as admin:
        admin.create_topic(name, queues=1)
    return name


@pytest.fixture
def producer(pair: LocalCluster) -> Iterator[Producer]:
    with Producer(pair.nameserver) as made:
        yield made


@pytest.fixture
def consumer(pair: LocalCluster, topic: str) -> Iterator[WorkQueueConsumer]:
    with WorkQueueConsumer(pair.nameserver, group=topic) as made:
        made.subscribe(topic)
        yield made


async def left_over() -> list[str]:
    """Return what work queue consumers still do on an event loop of a connection, once nothing more ends by itself."""
    found = [""]
    for _ in range(200):
        names = [str(task.get_coro()) for task in asyncio.all_tasks()]
        found = [name for name in names if "WorkQueueReader" in name or "Settler" in name]
        if not found:
            break
        await asyncio.sleep(0.05)
    return found


def fill(producer: Producer, topic: str, count: int, tag: str | None = None) -> None:
    producer.send_many([Message(topic, b"%d" % number, tag) for number in range(count)])


@pytest.mark.fault
def test_a_hundred_members_in_two_processes_do_each_message_once(
    pair: LocalCluster, producer: Producer, new_name: Callable[[], str]
) -> None:
    topic, processes, members, count = new_name(), 2, 50, 5_000
    command = [sys.executable, str(CROWD), pair.nameserver, topic, topic, str(members)]
    with Admin(pair.nameserver) as admin, ExitStack() as ends:
        admin.create_topic(topic, queues=2)  # on each of two brokers
        crowds = []
        for _ in range(processes):
            crowd = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
            ends.callback(crowd.wait)
            ends.callback(crowd.kill)  # first
            crowds.append(crowd)

        def members_there() -> int:
            with suppress(GroupNotFound):  # until the first one has come
                return len(admin.describe_group(topic).members)
            return 0

        wait_until(lambda: members_there() == processes * members, 60)
        fill(producer, topic, count)
        try:
            wait_until(lambda: admin.describe_group(topic).lag == 0, 60)
        except AssertionError:
            print(admin.describe_group(topic))
            raise
        done = [numbers for crowd in crowds for numbers in json.loads(crowd.communicate(timeout=60)[0])]
        assert Counter(number for numbers in done for number in numbers) == Counter(range(count))
        assert len(done) == processes * members
        assert admin.describe_group(topic).dead_letters == 0


def test_a_message_with_as_many_properties_as_there_can_be_becomes_a_dead_letter(
    pair: LocalCluster, producer: Producer, consumer: WorkQueueConsumer, topic: str
) -> None:
    properties = {"RETRY_TOPIC": "of the user", "k": "v" * (MAX_METADATA - len("RETRY_TOPICof the userk"))}
    producer.send(Message(topic, b"x", properties=properties))
    [message] = consumer.receive()
    consumer.reject(message, "y" * 200)
    with Admin(pair.nameserver) as admin:
        assert admin.describe_group(topic).lag == 0
        [letter] = admin.dead_letters(topic)
        assert letter.properties == properties
        assert admin.resend_dead_letters(topic) == 1
    [again] = wait_until(lambda: consumer.receive(timeout=1), 30)
    assert again.properties == properties


def test_wrong_uses_are_told_and_change_nothing(
    pair: LocalCluster, producer: Producer, consumer: WorkQueueConsumer, topic: str
) -> None:
    fill(producer, topic, 1)
    [message] = consumer.receive()
    damaged = message.handle[:-2] + ("AA" if message.handle[-2:] != "AA" else "BB")
    with pytest.raises(InvalidArgument, match="is no receipt handle"):
        consumer.ack([message.handle, damaged])
    beyond = str(message.receipt._replace(offset=message.queue_offset + 5))
    with pytest.raises(InvalidArgument, match="delivered end at"):
        consumer.ack(beyond)
    with pytest.raises(HandleExpired):
        consumer.ack(str(message.receipt._replace(epoch=message.epoch + 1)))
    with pytest.raises(InvalidArgument, match="int cannot be settled"):
        consumer.ack([5])  # type: ignore[list-item]
    for wrong in (0.5, 50_000, "5", float("nan"), True):
        with pytest.raises(InvalidArgument, match="invisible_s is"):
            consumer.extend(message, wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="delay_s is -1"):
        consumer.release(message, -1)
    with pytest.raises(InvalidArgument, match="max_messages is 0"):
        consumer.receive(0)
    with WorkQueueConsumer(pair.nameserver, group="another") as other:
        with pytest.raises(InvalidArgument, match=f"a handle of group '{topic}' cannot be settled by .*'another'"):
            other.ack(message)
        with pytest.raises(InvalidArgument, match="nothing is subscribed to"):
            other.receive(timeout=0)
        other.subscribe(f"{topic}-missing")
        with pytest.raises(TopicNotFound):
            other.receive(timeout=0)
    consumer.ack(message)
    with pytest.raises(InvalidArgument, match="max_deliveries is 0"):
        WorkQueueConsumer(pair.nameserver, group="g", max_deliveries=0)
    consumer.close()
    consumer.close()
    with pytest.raises(Closed):
        consumer.receive()


@pytest.mark.parametrize("call", ["ack", "release", "extend"])
def test_a_wrong_handle_among_good_ones_changes_nothing(
    pair: LocalCluster, producer: Producer, consumer: WorkQueueConsumer, topic: str, call: str
) -> None:
    with Admin(pair.nameserver) as admin:
        queue, other = sorted(admin.route(topic).read_queues())
        producer.send_many([Message(topic, b"x")] * 5, queue=queue)
        messages = consumer.receive(5)
        receipt = messages[0].receipt

        def in_flight() -> tuple[int, int, int]:
            """Return how many messages are in flight, unsettled, and in flight in the first queue."""
            found = admin.describe_group(topic)
            [popped] = [item.work_queue for item in found.queues if item.queue == queue]
            assert popped is not None
            return found.in_flight, found.lag, popped.in_flight + popped.returned + popped.settled_ahead

        assert in_flight() == (5, 5, 5)
        for wrong, error in (
            (messages[0].handle[:-4], "is no receipt handle"),
            ("", "is no receipt handle"),
            (str(receipt._replace(group="another")), "a handle of group 'another' cannot be settled"),
            (str(receipt._replace(offset=1 << 40)), "delivered end at 4"),
        ):
            with pytest.raises(InvalidArgument, match=error):
                getattr(consumer, call)([*messages, wrong])
            assert in_flight() == (5, 5, 5), wrong
        nowhere = str(receipt._replace(queue=MessageQueue(topic, other.broker_name, 7)))
        with pytest.raises(QueueNotFound, match="has no queue 7"):
            getattr(consumer, call)(nowhere)
        assert in_flight() == (5, 5, 5)
    consumer.ack(messages)


#: Where a bit of a batch is flipped, from where its body stands: its reader sees the one, its broker the other.
DAMAGE = {"body": 10, "entry": -(DIRECTORY.size + 2 * 4 + HEADER_BYTES + 5)}


def damage(cluster: LocalCluster, place: str) -> None:
    """Store three batches in one queue, and damage the second."""
    [broker] = cluster.brokers
    with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:
        admin.create_topic("t", queues=1)
        for body in (b"first", b"damaged", b"third"):
            producer.send(Message("t", body * 600))
    broker.stop()
    [segment] = Path(broker.data_dir, "commitlog").glob("*.mdb")
    data = bytearray(segment.read_bytes())
    data[data.index(b"damaged") + DAMAGE[place]] ^= 1
    segment.write_bytes(data)
    broker.start()


@pytest.mark.parametrize("place", DAMAGE)
def test_a_damaged_batch_is_told_once_and_holds_up_nobody(tmp_path: Path, place: str) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path) as cluster:
        damage(cluster, place)
        bodies: list[bytes] = []
        errors: list[MinimqError] = []
        with WorkQueueConsumer(cluster.nameserver, group="g", invisible_s=4) as consumer:
            consumer.subscribe("t")
            until = time.monotonic() + 5  # longer than the invisible duration
            while len(bodies) < 2 or not errors or time.monotonic() < until:
                try:
                    for message in consumer.receive(timeout=0.5):
                        bodies.append(message.body[:5])
                        consumer.ack(message)
                except (CorruptBatch, CorruptEntry) as error:
                    errors.append(error)
        assert sorted(bodies) == [b"first", b"third"]
        [told] = errors
        assert re.search("queue .*t.* at offsets? 1 .*set aside for 60 minutes", told.message)


def test_an_operator_sees_who_has_what(pair: LocalCluster, producer: Producer, topic: str) -> None:
    with Admin(pair.nameserver) as admin:
        [_, queue] = sorted(admin.route(topic).read_queues())
        producer.send_many([Message(topic, b"x")] * 20, queue=queue)
        with WorkQueueConsumer(pair.nameserver, group=topic) as consumer:
            consumer.subscribe(topic)
            messages = consumer.receive(10)
            consumer.ack(messages[5:7])
            consumer.release(messages[0], delay_s=100)
            found = admin.describe_group(topic)
            [described] = [item.work_queue for item in found.queues if item.queue == queue]
            assert described is not None
            assert (described.in_flight, described.returned, described.settled_ahead) == (7, 1, 2)
            assert (described.holders, described.max_delivery_count) == ({consumer.client_id: 7}, 1)
            assert (found.lag, found.in_flight, found.strategy) == (18, 7, None)
            assert [(member.client_id, member.topics) for member in found.members] == [(consumer.client_id, (topic,))]
            with pytest.raises(GroupConflict, match="connected"):
                admin.reset_offset(topic, topic, "latest")
            with pytest.raises(GroupConflict, match="connected"):
                admin.delete_group(topic)
            admin.reset_offset(topic, topic, "earliest", force=True)
            again = consumer.receive(100)
            assert {message.delivery_count for message in again} == {1}
            assert len(again) == 20
            with pytest.raises(HandleExpired):
                consumer.ack(messages[0])


def test_cancelled_takes_and_settles_keep_nothing(
    pair: LocalCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Others get at once whatever a cancelled `receive` would have returned, though it is invisible for an hour."""
    chance = random.Random(SEED)
    done: set[int] = set()
    cancelled = sent = 0

    async def cancel_somewhere(call: Coroutine[Any, Any, T]) -> T | None:
        nonlocal cancelled
        if chance.random() < 0.3:
            return await call
        task = asyncio.create_task(call)
        for _ in range(chance.randrange(8)):
            await asyncio.sleep(chance.choice((0, 0, 0.0005, 0.001)))
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            cancelled += 1
            return None

    async def main() -> list[str]:
        nonlocal sent
        with Producer(pair.nameserver) as producer:
            async with aio.WorkQueueConsumer(pair.nameserver, group=topic, invisible_s=3600) as consumer:
                consumer.subscribe(topic)
                async with asyncio.timeout(100):
                    while cancelled < CANCELLATIONS or len(done) < sent:
                        if len(done) == sent:
                            part = [Message(topic, b"%d" % number) for number in range(sent, sent + 30)]
                            sent += len(await asyncio.to_thread(producer.send_many, part))
                        most, timeout_s = chance.randrange(1, 5), chance.choice((0, 0.001, 0.05))
                        messages = await cancel_somewhere(consumer.receive(most, timeout=timeout_s))
                        if not messages:
                            continue
                        if chance.random() < 0.2:
                            await consumer.release(messages)
                            continue
                        await cancel_somewhere(chance.choice((consumer.ack, consumer.extend))(messages))
                        await consumer.ack(messages)  # repeated, or not
                        done.update(int(message.body) for message in messages)
                gc.collect()
                return await asyncio.wrap_future(
                    asyncio.run_coroutine_threadsafe(left_over(), consumer._reader.client.connection._loop)  # type: ignore[arg-type]
                )

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert asyncio.run(main()) == []
    assert "never" not in caplog.text  # retrieved, awaited
    with Admin(pair.nameserver) as admin:
        assert admin.describe_group(topic).lag == 0


def test_the_first_rejection_waits_for_the_election_of_a_master(
    pair: LocalCluster, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers_of, left = MasterClient._brokers, [1] * 4

    async def electing(masters: MasterClient, *, settled: bool) -> list[BrokerData]:
        found = await brokers_of(masters, settled=settled)
        if left and left.pop():  # then a slave is all there is
            return [replace(each, addresses=dict(enumerate(each.addresses.values(), 1))) for each in found]
        return found

    with Producer(pair.nameserver) as producer:
        producer.send(Message(topic, b"x"))
    with WorkQueueConsumer(pair.nameserver, group=group) as consumer:
        consumer.subscribe(topic)
        messages = consumer.receive(1, timeout=20)
        monkeypatch.setattr(MasterClient, "_brokers", electing)
        consumer.reject(messages)
    assert left == []
