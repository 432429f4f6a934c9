"""Sending through the producer, on real servers: what arrives, what is rejected, how it ends."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Permission, Producer, SendReceipt
from minimq.local.server_process import free_port
from minimq_common.errors import (
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    MessageTooLarge,
    MinimqError,
    NoPermission,
    QueueNotFound,
    SendFailed,
    TopicNotFound,
    Unavailable,
)
from minimq_proto.v1 import broker_pb2
from support.broker_link import BrokerLink
from support.cases import for_each
from support.reading import check_brokers, read_all, read_queue
from support.waiting import wait_until

TIMEOUT_S = 60.0


# ---- sending ------------------------------------------------------------------------------------


def test_a_message_arrives_as_it_was_sent(cluster: LocalCluster, producer: Producer, topic: str) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    sent = Message(topic, "grün".encode(), tag="paid", keys=("order-1", "kühl"), properties={"from": "Zürich"})
    receipt = producer.send(sent)
    [got] = read_queue(cluster.nameserver, receipt.queue)

    assert (got.topic, got.body, got.tag) == (topic, sent.body, "paid")
    assert (tuple(got.keys), dict(got.properties)) == (sent.keys, sent.properties)
    assert (got.queue, got.queue_offset) == (receipt.queue, receipt.queue_offset) == (receipt.queue, 0)
    assert got.message_id == receipt.message_id
    assert before <= got.born_at <= got.stored_at == receipt.stored_at <= datetime.now(UTC)


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_a_body_may_be_of_any_kind_of_bytes(
    cluster: LocalCluster, producer: Producer, topic: str, kind: Callable[[bytes], Any]
) -> None:
    producer.send(Message(topic, kind(b"alone")))
    producer.send_many([Message(topic, kind(b"one")), Message(topic, kind(b"of two"))])
    assert sorted(message.body for message in read_all(cluster.nameserver, topic)) == [b"alone", b"of two", b"one"]


def test_receipts_come_in_the_order_of_the_messages(
    cluster: LocalCluster, producer: Producer, admin: Admin, topic: str, new_name: Callable[[], str]
) -> None:
    """Two topics mixed, sizes mixed: each receipt is that of its message."""
    other = new_name()
    admin.create_topic(other, queues=1)
    messages = [
        Message(topic if number % 3 else other, b"%d " % number + bytes(number % 7 * 1000)) for number in range(20_000)
    ]
    receipts = producer.send_many(iter(messages))

    stored = {
        (message.queue, message.queue_offset): message.body
        for name in (topic, other)
        for message in read_all(cluster.nameserver, name)
    }
    assert len(receipts) == len(stored) == len(messages)
    for message, receipt in zip(messages, receipts, strict=True):
        assert stored[receipt.queue, receipt.queue_offset] == message.body


def test_a_selector_chooses_the_queue(producer: Producer, topic: str) -> None:
    for number in range(8):

        def choose(queues: Sequence[MessageQueue], _: Message, number: int = number) -> MessageQueue:
            return queues[number]

        receipt = producer.send(Message(topic, b"x"), selector=choose)
        assert receipt.queue_offset == 0


def test_a_callback_hears_of_the_outcome(producer: Producer, topic: str) -> None:
    heard: Future[tuple[SendReceipt | None, MinimqError | None]] = Future()
    producer.send_async(Message(topic, b"x"), callback=lambda receipt, error: heard.set_result((receipt, error)))
    receipt, error = heard.result(TIMEOUT_S)
    assert error is None
    assert receipt is not None
    assert receipt.queue.topic == topic


def test_a_callback_that_raises_again_and_again_is_logged_once(
    cluster: LocalCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(receipt: SendReceipt | None, error: MinimqError | None) -> None:
        raise ValueError("stumbled")

    with Producer(cluster.nameserver) as producer:
        for _ in range(50):
            producer.send_async(Message(topic, b"x"), callback=fail)
    assert caplog.text.count("ValueError: stumbled") == 1


def test_the_callback_of_a_cancelled_future_is_not_called(
    cluster: LocalCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[object] = []
    with Producer(cluster.nameserver) as producer:
        futures = [
            producer.send_async(Message(topic, b"x"), callback=lambda *outcome: called.append(outcome))
            for _ in range(50)
        ]
        cancelled = sum(future.cancel() for future in futures)
        producer.flush()
    assert cancelled + len(called) == 50
    assert "Traceback" not in caplog.text


@for_each("how", ["send", "send_async", "send_many"])
@for_each(
    ("message", "error"),
    [
        (Message("no-such-topic", b"x"), TopicNotFound),
        (Message("", b"x"), InvalidArgument),
        (Message("no spaces", b"x"), InvalidArgument),
        (Message("x" * 128, b"x"), InvalidArgument),
        (Message("T", bytes((4 << 20) + 1)), MessageTooLarge),
        (Message("T", b"x", keys=("a\0b",)), InvalidArgument),
        (Message("T", b"x", tag="\ud800"), InvalidArgument),
    ],
)
def test_a_wrong_message_is_rejected_and_the_producer_goes_on(
    producer: Producer, topic: str, how: str, message: Message, error: type[MinimqError]
) -> None:
    if message.topic == "T":
        message = Message(topic, message.body, message.tag, message.keys)
    calls: dict[str, Callable[[], object]] = {
        "send": lambda: producer.send(message),
        "send_async": lambda: producer.send_async(message).result(TIMEOUT_S),
        "send_many": lambda: producer.send_many([Message(topic, b"ahead"), message]),
    }
    with pytest.raises(error):
        calls[how]()
    assert producer.send(Message(topic, b"next")).queue.topic == topic


def test_nothing_from_a_wrong_message_on_is_sent(cluster: LocalCluster, producer: Producer, topic: str) -> None:
    messages = [Message(topic, b"%d" % number) for number in range(5000)]
    with pytest.raises(InvalidArgument):
        producer.send_many([*messages, Message(topic, b"x", keys=("a\0b",)), *messages])
    sent = sorted(int(message.body) for message in read_all(cluster.nameserver, topic))
    assert sent == list(range(len(sent)))


@pytest.mark.parametrize("number", [4, -1, 99])
def test_a_queue_that_does_not_exist_is_named(producer: Producer, topic: str, number: int) -> None:
    queue = MessageQueue(topic, "broker-a", number)
    with pytest.raises(QueueNotFound, match=f"{topic}/broker-a/{number}"):
        producer.send(Message(topic, b"x"), queue=queue)
    with pytest.raises(MinimqError, match=f"{topic}/broker-a/{number}"):
        producer.send_many([Message(topic, b"x")], queue=queue)


def test_a_topic_that_may_not_be_written_says_so(producer: Producer, admin: Admin, topic: str) -> None:
    producer.send(Message(topic, b"x"))
    admin.update_topic(topic, permission=Permission.READ)
    with pytest.raises((NoPermission, SendFailed, TopicNotFound), match=r"not writable|no broker takes messages"):
        producer.send(Message(topic, b"x"))
    admin.update_topic(topic, permission=Permission.READ_WRITE)
    producer.send(Message(topic, b"x"))


def test_a_topic_made_later_is_found(producer: Producer, admin: Admin, new_name: Callable[[], str]) -> None:
    name = new_name()
    with pytest.raises(TopicNotFound, match=f"minimq topic create {name}"):
        producer.send(Message(name, b"x"))
    admin.create_topic(name, queues=1)
    assert producer.send(Message(name, b"x")).queue_offset == 0


def test_a_deleted_topic_rejects_and_made_again_begins_at_0(producer: Producer, admin: Admin, topic: str) -> None:
    queue = producer.send(Message(topic, b"old")).queue
    admin.delete_topic(topic)
    with pytest.raises(MinimqError, match="does not exist"):
        producer.send(Message(topic, b"x"))
    with pytest.raises(TopicNotFound, match="minimq topic create"):  # from now on it is asked for anew
        producer.send(Message(topic, b"x"))
    admin.create_topic(topic, queues=4)
    assert producer.send(Message(topic, b"new"), queue=queue).queue_offset == 0


@for_each("options", [{"max_in_flight_requests": 0}, {"send_timeout_s": -1}, {"bogus": 1}, {"batch_bytes": 0}])
def test_a_wrong_option_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        Producer("127.0.0.1:1", **options)


def test_long_keys_and_properties_count_for_the_size_of_batches(producer: Producer, topic: str) -> None:
    long = "p" * 3000
    sent = [Message(topic, b"x", keys=[long], properties={"p": long}) for _ in range(6000)]

    receipts = producer.send_many([Message(topic, b"x")] * 2000 + sent)

    assert len(receipts) == 8000
    with pytest.raises(InvalidArgument, match="32767"):
        producer.send(Message(topic, b"x", properties={"p": "p" * 40_000}))


def test_a_broker_that_cannot_be_reached_says_where(own_cluster: LocalCluster) -> None:
    link = BrokerLink(f"127.0.0.1:{free_port()}")
    with pytest.raises((Unavailable, DeadlineExceeded), match=link.address):
        link.call(link.stub.GetStatus, broker_pb2.GetStatusRequest(), 5.0)
    link.close()


def test_offsets_of_receipts_in_a_queue_never_repeat_nor_skip(
    cluster: LocalCluster, producer: Producer, topic: str
) -> None:
    """Four threads at once, singly and in bulk."""
    receipts: list[list[SendReceipt]] = [[] for _ in range(4)]

    def send(number: int) -> None:
        for _ in range(20):
            receipts[number] += producer.send_many([Message(topic, b"x")] * 100)
            receipts[number].append(producer.send(Message(topic, b"x")))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    offsets: dict[MessageQueue, list[int]] = {}
    for receipt in chain.from_iterable(receipts):
        offsets.setdefault(receipt.queue, []).append(receipt.queue_offset)
    assert sum(map(len, offsets.values())) == 4 * 20 * 101
    for found in offsets.values():
        found.sort()
        assert found[0] == 0
        assert all(later == earlier + 1 for earlier, later in pairwise(found))


# ---- bounds and closing -------------------------------------------------------------------------


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """One broker for a test that pauses it."""
    with LocalCluster(brokers=1, data_dir=tmp_path) as made:
        with Admin(made.nameserver) as admin:
            admin.create_topic("t", queues=2)
        yield made
    check_brokers(made)


@pytest.mark.fault
def test_a_full_buffer_blocks_and_close_flushes(own_cluster: LocalCluster) -> None:
    [broker] = own_cluster.brokers
    body = bytes(10_000)
    producer = Producer(own_cluster.nameserver, buffer_bytes=200_000, send_timeout_s=60)
    producer.send(Message("t", body))
    broker.pause()
    handed_in: list[Future[SendReceipt]] = []

    def send() -> None:
        for _ in range(100):
            handed_in.append(producer.send_async(Message("t", body)))

    sender = threading.Thread(target=send)
    sender.start()
    # Stands still at the bound: as many as fit, and no more while the broker does nothing.
    wait_until(lambda: len(handed_in) >= 200_000 // (len(body) + 64), TIMEOUT_S)
    sender.join(0.2)
    assert sender.is_alive()
    assert len(handed_in) <= 20
    broker.resume()
    sender.join(TIMEOUT_S)
    assert not sender.is_alive()
    producer.close()
    assert [future.exception(0) for future in handed_in] == [None] * 100
    assert len(read_all(own_cluster.nameserver, "t")) == 101


def test_close_while_others_send_loses_no_answer(own_cluster: LocalCluster) -> None:
    """Each future ends: with a receipt, and then the message is stored, or with Closed."""
    for _ in range(10):
        producer = Producer(own_cluster.nameserver)
        futures: list[Future[SendReceipt]] = []
        started = threading.Event()

        def send(
            producer: Producer = producer,
            futures: list[Future[SendReceipt]] = futures,
            started: threading.Event = started,
        ) -> None:
            with contextlib.suppress(Closed):
                while True:
                    futures.append(producer.send_async(Message("t", b"x")))
                    started.set()

        senders = [threading.Thread(target=send) for _ in range(3)]
        for sender in senders:
            sender.start()
        started.wait(TIMEOUT_S)
        with contextlib.suppress(SendFailed):
            producer.close(0.05)
        for sender in senders:
            sender.join(TIMEOUT_S)
        for future in futures:
            error = future.exception(TIMEOUT_S)
            assert error is None or isinstance(error, Closed)
        with pytest.raises(Closed):
            producer.send(Message("t", b"x"))
        producer.close()


@pytest.mark.fault
def test_close_says_how_many_messages_were_not_acknowledged(own_cluster: LocalCluster) -> None:
    [broker] = own_cluster.brokers
    producer = Producer(own_cluster.nameserver, send_timeout_s=60)
    producer.send(Message("t", b"x"))
    broker.pause()
    futures = [producer.send_async(Message("t", b"x")) for _ in range(5)]
    with pytest.raises(SendFailed, match=r"5 messages were not acknowledged within 0.2 s before the producer closed"):
        producer.close(0.2)
    broker.resume()
    for future in futures:
        assert isinstance(future.exception(TIMEOUT_S), Closed)


@pytest.mark.fault
def test_a_broker_that_hangs_is_given_up_in_time(own_cluster: LocalCluster) -> None:
    [broker] = own_cluster.brokers
    with Producer(own_cluster.nameserver, send_timeout_s=5.0) as producer:
        producer.send(Message("t", b"x"))
        broker.pause()
        began = time.monotonic()
        with pytest.raises(SendFailed) as raised:
            producer.send(Message("t", b"x"))
        assert 0.2 < time.monotonic() - began < TIMEOUT_S
        assert all("did not answer in" in text for text in raised.value.attempts)
        assert len(raised.value.attempts) >= 2
        broker.resume()


# ---- Producers of batches that are as large as a broker takes -----------------------------------


def test_producers_of_large_batches_are_all_served() -> None:
    messages, size = 4, 1 << 20
    with LocalCluster(brokers=1) as cluster, ExitStack() as stack, ThreadPoolExecutor(8) as pool:
        admin = stack.enter_context(Admin(cluster.nameserver))
        admin.create_topic("large", queues=8)
        producers = [
            stack.enter_context(Producer(cluster.nameserver, batch_bytes=messages * size, send_timeout_s=TIMEOUT_S))
            for _ in range(8)
        ]
        batch = [Message("large", bytes(size))] * messages
        sent = list(pool.map(lambda producer: producer.send_many(batch), producers))
        assert [len(receipts) for receipts in sent] == [messages] * 8
        assert admin.describe_topic("large").messages == messages * 8
