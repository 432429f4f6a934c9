"""Transactions of producers, plain and for asyncio, with and without a consumer: all of it is stored, or nothing."""

# ruff: noqa: PT012, SIM117 - the end of a transaction's block raises

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from minimq import (
    Admin,
    Compaction,
    LocalCluster,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    ReceivedMessage,
    WorkQueueConsumer,
    aio,
    by_hash,
)
from minimq.errors import Fenced, InvalidArgument, MessageTooLarge, SendFailed, StaleSequence, TopicNotFound
from minimq_common.batch.builder import BatchBuilder
from minimq_common.wire.rpc import open_channel
from minimq_proto.v1 import broker_pb2, broker_pb2_grpc
from support.process import process
from support.reading import read_all
from support.waiting import wait_until


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, data_dir=tmp_path_factory.mktemp("transactions")) as cluster:
        yield cluster


@pytest.fixture
def admin(pair: LocalCluster) -> Iterator[Admin]:
    with Admin(pair.nameserver) as admin:
        yield admin


@pytest.fixture
def producer(pair: LocalCluster) -> Iterator[Producer]:
    with Producer(pair.nameserver) as producer:
        yield producer


@pytest.fixture
def topics(admin: Admin, new_name: Callable[[], str]) -> tuple[str, str]:
    """Return two topics with two queues on each of two brokers: for input, and for output."""
    names = new_name(), new_name()
    for name in names:
        admin.create_topic(name, queues=2)
    return names


def stored(pair: LocalCluster, topic: str) -> list[bytes]:
    """Return the bodies of a topic, sorted."""
    with Admin(pair.nameserver) as admin, PullConsumer(pair.nameserver) as reader:
        ends = {each.queue: each.messages for each in admin.describe_topic(topic).queues}
        left = sum(ends.values())
        if not left:
            return []
        reader.assign(ends)
        found: list[bytes] = []
        while len(found) < left:
            found += [message.body for message in reader.poll(10)]
        return sorted(found)


def test_a_transaction_has_a_largest_size_and_number_of_batches(
    producer: Producer, topics: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MessageTooLarge, match=r"the limit is 8,388,608: end it earlier"), producer.transaction() as tx:
        for _ in range(3):
            tx.send(Message(topics[0], bytes(3 << 20)))
    monkeypatch.setattr("minimq.sending.transaction_manager.MAX_ATOMIC_BATCHES", 1)
    with (
        pytest.raises(InvalidArgument, match=r"has 2 batches .*, the limit is 1: divide it"),
        producer.transaction() as tx,
    ):
        for topic in topics:
            tx.send(Message(topic, b"x"))


def test_topics_without_a_common_broker_are_named(
    pair: LocalCluster, producer: Producer, admin: Admin, new_name: Callable[[], str]
) -> None:
    left, right = new_name(), new_name()
    admin.create_topic(left, queues=1, brokers=["broker-a"])
    admin.create_topic(right, queues=1, brokers=["broker-b"])
    expected = f"{left} is on broker-a; {right} is on broker-b"
    with pytest.raises(TopicNotFound, match=expected), producer.transaction() as tx:
        tx.send(Message(left, b"1"))
        tx.send(Message(right, b"2"))
    assert stored(pair, left) == []
    with pytest.raises(InvalidArgument, match="different brokers"), producer.transaction() as tx:
        tx.send(Message(left, b"1"), queue=MessageQueue(left, "broker-a", 0))
        tx.send(Message(right, b"2"), queue=MessageQueue(right, "broker-b", 0))


def test_a_selector_puts_each_key_into_the_queue_that_it_has_without_a_transaction(
    pair: LocalCluster, producer: Producer, topics: tuple[str, str]
) -> None:
    """Among the queues of both brokers, and what belongs to the other broker is rejected with all the rest."""
    topic = topics[0]
    keyed = [Message(topic, b"%d" % number, keys=[f"k{number}"]) for number in range(20)]
    places = [producer.send(message, selector=by_hash()).queue for message in keyed]
    assert {place.broker_name for place in places} == {"broker-a", "broker-b"}
    for message, place in zip(keyed, places, strict=True):
        with producer.transaction() as tx:
            tx.send(Message(topics[1], b"free"))
            tx.send(message, selector=by_hash())
            tx.send(message, selector=by_hash())
        free, *chosen = [receipt.queue for receipt in tx.receipts]
        assert chosen == [place, place]
        assert free.broker_name == place.broker_name
    before = len(stored(pair, topic))
    rejected = pytest.raises(InvalidArgument, match=r"at different brokers: .* send to each broker in a transaction of")
    with rejected, producer.transaction() as tx:
        for message in keyed:
            tx.send(message, selector=by_hash())
    assert len(stored(pair, topic)) == before


def test_a_key_that_belongs_to_another_broker_than_what_was_consumed_is_rejected(
    pair: LocalCluster, producer: Producer, topics: tuple[str, str], group: str
) -> None:
    source, target = topics
    [place] = [producer.send(Message(source, b"x")).queue]
    keys = (f"k{number}" for number in range(1_000))
    [here, there] = [
        next(
            key
            for key in keys
            if producer.send(Message(target, b"", keys=[key]), selector=by_hash()).queue.broker_name == name
        )
        for name in (place.broker_name, {"broker-a": "broker-b", "broker-b": "broker-a"}[place.broker_name])
    ]
    with PullConsumer(pair.nameserver, group=group, auto_commit=False, start="earliest") as consumer:
        consumer.subscribe(source)

        def consume(key: str) -> list[ReceivedMessage]:
            with producer.transaction(consumer) as tx:
                found = tx.receive(timeout=0.5)
                for message in found:
                    tx.send(Message(target, message.body, keys=[key]), selector=by_hash())
            return found

        with pytest.raises(InvalidArgument, match=r"at another broker: .* or create the topic on one broker"):
            wait_until(lambda: consume(there), 40.0)
        assert len(wait_until(lambda: consume(here), 40.0)) == 1  # nothing was lost by that


def test_what_cannot_be_part_of_a_transaction_is_rejected(producer: Producer, topics: tuple[str, str]) -> None:
    topic = topics[0]
    with producer.transaction() as tx:
        with pytest.raises(InvalidArgument, match="delayed"):
            tx.send(Message(topic, b"1", deliver_after_s=1.0))
        with pytest.raises(InvalidArgument, match="no consumer"):
            tx.receive()
        with pytest.raises(InvalidArgument, match="either queue or selector"):
            tx.send(Message(topic, b"1"), queue=MessageQueue(topic, "broker-a", 0), selector=by_hash("x"))
        with pytest.raises(MessageTooLarge, match="end it earlier"):
            for _ in range(5):
                tx.send(Message(topic, bytes(4 << 20)))
        tx.rollback()


# ---- consume, process, produce ----------------------------------------------------------------------------


def fill(producer: Producer, topic: str, count: int) -> list[bytes]:
    producer.send_many(Message(topic, b"%d" % number) for number in range(count))
    return sorted(b"%d" % number for number in range(count))


RELAY = """
import sys
from minimq import Message, Producer, PullConsumer, WorkQueueConsumer
from minimq.errors import Fenced
nameserver, group, source, target, balance, name = sys.argv[1:]
kind, options = (PullConsumer, {"auto_commit": False}) if balance == "queues" else (WorkQueueConsumer, {})
with kind(nameserver, group=group, **options) as consumer, Producer(nameserver) as producer:
    consumer.subscribe(source)
    while True:
        try:
            with producer.transaction(consumer) as tx:
                for message in tx.receive(0.5, 10):
                    tx.send(Message(target, message.body, properties={"relay": name}))
        except Fenced:
            pass
"""


@pytest.mark.parametrize("mode", ["queues", "work_queue"])
def test_a_second_process_of_the_group_beside_the_first_repeats_and_loses_nothing(
    pair: LocalCluster, producer: Producer, admin: Admin, topics: tuple[str, str], group: str, mode: str
) -> None:
    source, target = topics
    arguments = [sys.executable, "-c", RELAY, pair.nameserver, group, source, target, mode]
    expected: list[bytes] = []

    def relays_after_more() -> set[str]:
        bodies = [b"%d" % number for number in range(len(expected), len(expected) + 40)]
        producer.send_many(Message(source, body) for body in bodies)
        expected.extend(bodies)
        return {message.properties["relay"] for message in read_all(pair.nameserver, target)}

    with process(*arguments, "first"):
        wait_until(relays_after_more, what="the first one is at work")
        with process(*arguments, "second"):
            wait_until(lambda: len(relays_after_more()) == 2, what="both are at work")
            wait_until(lambda: admin.describe_group(group).lag == 0, what="they have done all")
    assert stored(pair, target) == sorted(expected)


def test_output_topics_have_to_be_where_the_messages_are(
    pair: LocalCluster, producer: Producer, admin: Admin, new_name: Callable[[], str], group: str
) -> None:
    source, target = new_name(), new_name()
    admin.create_topic(source, queues=1, brokers=["broker-a"])
    admin.create_topic(target, queues=1, brokers=["broker-b"])
    fill(producer, source, 3)
    with PullConsumer(pair.nameserver, group=group, auto_commit=False) as consumer:
        consumer.subscribe(source)
        with (
            pytest.raises(TopicNotFound, match=f"broker broker-a does not take .*{target} is on broker-b"),
            producer.transaction(consumer) as tx,
        ):
            for message in tx.receive(10.0):
                tx.send(Message(target, message.body))
        with producer.transaction(consumer) as tx:  # it goes on from there
            assert len(tx.receive(10.0)) == 3
            with pytest.raises(InvalidArgument, match="receives once"):
                tx.receive()


def test_who_was_sent_elsewhere_meanwhile_is_fenced_and_goes_on(
    pair: LocalCluster, producer: Producer, admin: Admin, topics: tuple[str, str], group: str
) -> None:
    source, target = topics
    fill(producer, source, 40)
    with PullConsumer(pair.nameserver, group=group, auto_commit=False) as consumer:
        consumer.subscribe(source)
        with pytest.raises(Fenced), producer.transaction(consumer) as tx:
            messages = tx.receive(10.0)
            assert messages
            admin.reset_offset(group, source, "latest", force=True)
            tx.send(Message(target, b"never"))
        assert stored(pair, target) == []
        producer.send(Message(source, b"next"))
        found: list[bytes] = []
        while not found:
            with producer.transaction(consumer) as tx:
                found = [message.body for message in tx.receive(10.0)]
        assert found == [b"next"]


def test_messages_that_another_consumer_has_settled_fence_the_late_one(
    pair: LocalCluster, producer: Producer, topics: tuple[str, str], group: str
) -> None:
    source, target = topics
    producer.send(Message(source, b"1"))
    with (
        WorkQueueConsumer(pair.nameserver, group=group, invisible_s=1.0) as late,
        WorkQueueConsumer(pair.nameserver, group=group) as quick,
    ):
        late.subscribe(source)
        quick.subscribe(source)
        with pytest.raises(Fenced, match="others have got them"), producer.transaction(late) as tx:
            assert len(tx.receive(10.0)) == 1
            with producer.transaction(quick) as other:
                assert len(other.receive(10.0)) == 1
                other.send(Message(target, b"quick"))
            tx.send(Message(target, b"late"))
    assert stored(pair, target) == [b"quick"]


def _master_of_a(producer: Producer) -> str | None:
    route = producer._core.client.routes.known("table")
    return route.master_of("broker-a") if route is not None else None


def test_what_was_consumed_is_read_again_if_the_end_is_cancelled_before_it_has_begun(
    pair: LocalCluster, topics: tuple[str, str], group: str
) -> None:
    """A large transaction is encoded in turns with others, and a cancellation ends that."""

    def choose(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        ending[0].cancel()
        return queues[0]

    ending: list[asyncio.Future[None]] = []

    async def consume(producer: aio.Producer, consumer: aio.PullConsumer) -> None:
        async with producer.transaction(consumer) as tx:
            assert [message.body for message in await tx.receive(20)] == [b"in"]
            tx.send(Message(topics[1], b"x" * 200_000), selector=choose)

    async def run() -> None:
        queue = MessageQueue(topics[0], "broker-a", 0)
        async with (
            aio.Producer(pair.nameserver) as producer,
            aio.PullConsumer(pair.nameserver, group=group, auto_commit=False) as consumer,
        ):
            await producer.send(Message(topics[0], b"in"), queue=queue)
            consumer.subscribe(topics[0])
            ending.append(asyncio.ensure_future(consume(producer, consumer)))
            with pytest.raises(asyncio.CancelledError):
                await ending[0]
            again = await consumer.poll(20)
            assert [message.body for message in again] == [b"in"]

    asyncio.run(run())
    assert stored(pair, topics[1]) == []


def test_a_transaction_waits_for_a_broker_without_a_master(tmp_path: Path) -> None:
    with (
        LocalCluster(brokers=2, data_dir=tmp_path) as cluster,
        Admin(cluster.nameserver) as admin,
        Producer(cluster.nameserver) as producer,
        Producer(cluster.nameserver, send_timeout_s=5.0) as hasty,
    ):
        admin.create_topic("table", queues=2, compaction=Compaction())
        absent = cluster.brokers[0]
        sent = [producer.send(Message("table", b"x", keys=[str(number)])) for number in range(100)]
        key = next(str(number) for number, receipt in enumerate(sent) if receipt.queue.broker_name == "broker-a")
        hasty.send(Message("table", b"x", keys=[key]))
        absent.stop()
        wait_until(
            lambda: _master_of_a(producer) is _master_of_a(hasty) is None, 60.0, what="they have heard that it has gone"
        )
        with pytest.raises(SendFailed, match=r"nothing of it is stored: .*: start broker-a"):
            with hasty.transaction() as tx:
                tx.send(Message("table", b"y", keys=[key]))
        timer = threading.Timer(0.5, absent.start)
        timer.start()
        with producer.transaction() as tx:
            tx.send(Message("table", b"z", keys=[key]))
        timer.join()
        assert [receipt.queue.broker_name for receipt in tx.receipts] == ["broker-a"]


def stored_at(cluster: LocalCluster, topic: str, broker_name: str) -> list[bytes]:
    with PullConsumer(cluster.nameserver) as reader:
        reader.assign([MessageQueue(topic, broker_name, 0)])
        found: list[bytes] = []
        while not reader.at_end():
            found += [message.body for message in reader.poll(1.0)]
        return found


# ---- requests as no client of ours makes them -------------------------------------------------------------


@pytest.fixture
def append(pair: LocalCluster) -> Iterator[Callable[..., list[broker_pb2.AtomicAppendResult]]]:
    """Return a function that sends one request to a broker, and returns the results."""
    with closing(open_channel(pair.brokers[0].address)) as channel:
        stub = broker_pb2_grpc.BrokerStub(channel)

        def call(*appends: broker_pb2.AtomicAppend) -> list[broker_pb2.AtomicAppendResult]:
            for number, each in enumerate(appends, 1):
                each.request_id = number
            answers = stub.AppendAtomic(iter([broker_pb2.AtomicAppendRequest(appends=appends)]), timeout=30.0)
            return [result for answer in answers for result in answer.results]

        yield call


def numbered(topic: str, *numbers: int, body: bytes = b"x", producer_id: int = 77) -> broker_pb2.AtomicAppend:
    """Return an append of a batch for each number."""
    made = broker_pb2.AtomicAppend()
    for number in numbers:
        builder = BatchBuilder(32 << 20)
        builder.add([Message(topic, body)])
        made.batches.add(topic=topic, queue_id=0, batch=builder.build(1_600_000_000_000, producer_id, number, 1 << 20))
    return made


def test_each_append_of_a_request_stands_by_itself(
    append: Callable[..., list[broker_pb2.AtomicAppendResult]], topics: tuple[str, str]
) -> None:
    topic = topics[0]
    too_large = numbered(topic, *range(10, 15), body=bytes(7 << 18))
    many_spans = numbered(topic, 20)
    many_spans.progress.group = "g"
    for _ in range(5):
        many_spans.progress.settles.add(topic=topic, spans=[1, 1] * 2_400)
    both = numbered(topic, 40)
    both.progress.commit.group = both.progress.group = "g"
    both.progress.settles.add(topic=topic, spans=[0, 1])
    alone = broker_pb2.AtomicAppend(progress=both.progress)
    results = append(
        numbered(topic, 1, 2),
        numbered(topic, 3, 3),
        numbered(topic, 4, producer_id=0),
        broker_pb2.AtomicAppend(),
        many_spans,
        numbered(topic, 5),
        both,
        alone,
    )
    said = {result.request_id: result.failure.message for result in results}
    assert said.pop(1) == said.pop(6) == ""
    for number, text in {
        2: "two batches of an atomic append have the same number",
        3: "a batch without a number",
        4: "an atomic append needs batches, or",
        5: "settles 12,000 spans",
        7: "one kind of progress",
        8: "one kind of progress",
    }.items():
        assert text in said[number]
    [rejected] = append(too_large)
    assert "over the limit of 8,388,608" in rejected.failure.message
    with pytest.raises(grpc.RpcError, match="at least one"):
        append()


def test_what_is_stored_is_found_although_the_lease_has_ended(
    append: Callable[..., list[broker_pb2.AtomicAppendResult]], topics: tuple[str, str]
) -> None:
    topic = topics[0]

    def fenced(*numbers: int) -> broker_pb2.AtomicAppend:
        made = numbered(topic, *numbers)
        made.progress.commit.group, made.progress.commit.client_id = "g", "nobody"
        made.progress.commit.offsets.add(topic=topic, queue_id=0, offset=0, epoch=5)
        made.progress.begins.append(0)
        return made

    [stored_first] = append(numbered(topic, 1, 2))
    [again] = append(fenced(1, 2))
    assert [each.base_offset for each in again.batches] == [each.base_offset for each in stored_first.batches]
    assert {each.status for each in again.batches} == {broker_pb2.SEND_STATUS_ALREADY_STORED}
    [rejected] = append(fenced(3, 4))
    assert rejected.failure.code == Fenced.code
    [partly] = append(numbered(topic, 2, 3))
    assert partly.failure.code == StaleSequence.code
