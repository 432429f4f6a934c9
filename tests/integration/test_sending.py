"""Sending through the producer, on real servers: what arrives, what is rejected, how it ends."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, SendReceipt
from minimq.local.server_process import free_port
from minimq_common.errors import (
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    MessageTooLarge,
    MinimqError,
    SendFailed,
    TopicNotFound,
    Unavailable,
)
from minimq_proto.v1 import broker_pb2
from support.broker_link import BrokerLink
from support.cases import for_each
from support.reading import check_brokers, read_all
from support.waiting import wait_until

TIMEOUT_S = 60.0


# ---- sending ------------------------------------------------------------------------------------


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
