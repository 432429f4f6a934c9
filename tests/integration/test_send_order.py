"""Messages keep the order in which they are sent, none starves, and none is forgotten; with real servers."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, SendReceipt, by_hash
from minimq.sending import producer_core
from minimq.sending.selectors import Selector
from minimq_common.errors import Closed, SendFailed
from support.waiting import wait_until

TIMEOUT_S = 30.0


@pytest.fixture
def single(tmp_path: Path) -> Iterator[LocalCluster]:
    """One broker, with a topic of four queues."""
    with LocalCluster(brokers=1, data_dir=tmp_path) as made:
        with Admin(made.nameserver) as admin:
            admin.create_topic("t", queues=4)
        yield made


@pytest.mark.parametrize("selector", [None, by_hash()], ids=["queue", "key"])
def test_single_messages_and_many_for_one_queue_keep_their_order(
    cluster: LocalCluster, topic: str, selector: Selector | None
) -> None:
    queue = None if selector else MessageQueue(topic, "broker-a", 1)
    with Producer(cluster.nameserver) as producer:
        for _ in range(20):
            singles = [
                producer.send_async(Message(topic, b"x", keys=["k"]), queue=queue, selector=selector) for _ in range(5)
            ]
            [later] = producer.send_many([Message(topic, b"y", keys=["k"])], queue=queue, selector=selector)
            offsets = [future.result(TIMEOUT_S).queue_offset for future in singles]
            assert [*offsets, later.queue_offset] == sorted([*offsets, later.queue_offset])


def test_a_flood_lets_a_single_message_through(cluster: LocalCluster, topic: str) -> None:
    body = bytes(1 << 20)
    going_on = threading.Event()
    ended_at: list[float] = []

    def flood(producer: Producer) -> None:
        def messages() -> Iterator[Message]:
            for number in range(300):
                if number == 100:
                    going_on.set()
                yield Message(topic, body)

        producer.send_many(messages())
        ended_at.append(time.monotonic())

    with Producer(cluster.nameserver) as producer:
        flooding = threading.Thread(target=flood, args=(producer,))
        flooding.start()
        assert going_on.wait(TIMEOUT_S)
        producer.send(Message(topic, b"single"))
        single_at = time.monotonic()
        flooding.join(2 * TIMEOUT_S)
    assert single_at < ended_at[0]


def test_a_broker_that_is_offline_is_not_asked_for_in_a_busy_loop(single: LocalCluster) -> None:
    queue = MessageQueue("t", "broker-a", 0)
    with Producer(single.nameserver, send_timeout_s=3.0) as producer:
        producer.send(Message("t", b"x"), queue=queue)
        single.brokers[0].stop()
        cpu = time.process_time()
        with pytest.raises(SendFailed):
            producer.send(Message("t", b"x"), queue=queue)
        assert time.process_time() - cpu < 2.0
        assert producer.statistics().retries < 60


# ---- ends ---------------------------------------------------------------------------------------


def test_closing_keeps_others_out_and_flushes_what_is_in(cluster: LocalCluster, topic: str) -> None:
    producer = Producer(cluster.nameserver)
    futures: list[Future[SendReceipt]] = []
    rejected = threading.Event()

    def go_on() -> None:
        try:
            while True:
                futures.append(producer.send_async(Message(topic, b"x")))
        except Closed:
            rejected.set()

    threads = [threading.Thread(target=go_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(futures) > 1_000, TIMEOUT_S)
    producer.close()  # raises nothing: all that was handed in is acknowledged
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert rejected.is_set()
    assert all(future.exception(TIMEOUT_S) is None for future in futures)


@pytest.mark.fault
def test_flush_waits_for_what_was_handed_in_before_it(single: LocalCluster) -> None:
    stop = threading.Event()
    with Producer(single.nameserver) as producer:

        def go_on() -> None:
            while not stop.is_set():
                producer.send_async(Message("t", b"x"))

        thread = threading.Thread(target=go_on)
        thread.start()
        first = producer.send_async(Message("t", b"first"))
        producer.flush(TIMEOUT_S)
        assert first.done()
        stop.set()
        thread.join(TIMEOUT_S)
        single.brokers[0].pause()
        producer.send_async(Message("t", b"late"))
        with pytest.raises(SendFailed, match=r"messages? (was|were) still on their way after 0\.1 s"):
            producer.flush(0.1)
        single.brokers[0].resume()


@pytest.mark.fault
@pytest.mark.parametrize("timeout_s", [0.05, 0.5])
def test_every_future_ends_whatever_moment_closing_comes(single: LocalCluster, timeout_s: float) -> None:
    for _ in range(3):
        producer = Producer(single.nameserver, send_timeout_s=TIMEOUT_S)
        producer.send(Message("t", b"x"))
        single.brokers[0].pause()
        futures: list[Future[SendReceipt]] = []

        def go_on(producer: Producer = producer, futures: list[Future[SendReceipt]] = futures) -> None:
            try:
                while True:
                    futures.append(producer.send_async(Message("t", bytes(500))))
            except Closed:
                pass

        threads = [threading.Thread(target=go_on) for _ in range(6)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(futures) > 100, TIMEOUT_S)  # noqa: B023
        began = time.monotonic()
        with pytest.raises(SendFailed, match="messages were not acknowledged within"):
            producer.close(timeout_s)
        assert timeout_s <= time.monotonic() - began < TIMEOUT_S
        for thread in threads:
            thread.join(TIMEOUT_S)
        for future in futures:
            future.exception(TIMEOUT_S)
        single.brokers[0].resume()


def test_an_interrupt_in_the_middle_of_many_leaves_nothing_behind(cluster: LocalCluster, topic: str) -> None:
    def messages() -> Iterator[Message]:
        for number in range(100_000):
            if number == 50_000:
                signal.raise_signal(signal.SIGINT)
            yield Message(topic, b"%d" % number)

    with Producer(cluster.nameserver) as producer:
        with pytest.raises(KeyboardInterrupt):
            producer.send_many(messages())
        told = producer.statistics()
        assert (told.buffered_messages, told.buffered_bytes) == (0, 0)
        assert producer.send(Message(topic, b"after")).queue.topic == topic


@pytest.mark.fault
def test_an_interrupt_while_messages_are_read_does_not_wait_for_a_broker_that_hangs(
    single: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_core, "_INTERRUPTED_FLUSH_S", 0.1)

    def messages() -> Iterator[Message]:
        for _ in range(5000):
            yield Message("t", bytes(1000))
        raise KeyboardInterrupt

    with Producer(single.nameserver) as producer:
        producer.send(Message("t", b"before"))
        single.brokers[0].pause()
        try:
            with pytest.raises(KeyboardInterrupt):
                producer.send_many(messages())
            assert producer.statistics().buffered_messages  # they had no outcome yet
        finally:
            single.brokers[0].resume()
        producer.flush(TIMEOUT_S)


# ---- interceptors that see every end ------------------------------------------------------------


def test_many_take_no_more_than_the_buffer(cluster: LocalCluster, admin: Admin, topic: str) -> None:
    wide = topic + "-wide"
    admin.create_topic(wide, queues=128)
    most = 0
    with Producer(cluster.nameserver, buffer_bytes=1 << 20) as producer:

        def messages() -> Iterator[Message]:
            nonlocal most
            for number in range(20_000):
                yield Message(wide, bytes(1_000), keys=[f"k{number}"])
                most = max(most, producer.statistics().buffered_bytes)

        assert len(producer.send_many(messages(), selector=by_hash())) == 20_000
    assert most < 2 << 20
    admin.delete_topic(wide)


@pytest.mark.fault
def test_latency_counts_from_handing_in(single: LocalCluster) -> None:
    with Producer(single.nameserver, max_in_flight_requests=1, send_timeout_s=TIMEOUT_S) as producer:
        producer.send(Message("t", b"x"))
        single.brokers[0].pause()
        futures = [producer.send_async(Message("t", b"x")) for _ in range(100)]  # all but the first wait in their lane
        paused_at = time.monotonic()
        wait_until(lambda: time.monotonic() - paused_at > 0.5, TIMEOUT_S)
        single.brokers[0].resume()
        for future in futures:
            future.result(TIMEOUT_S)
        assert producer.statistics().latency.quantile_s(0.5) > 0.4
