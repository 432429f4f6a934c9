"""Messages keep the order in which they are sent, none starves, and none is forgotten; with real servers."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from minimq import (
    Admin,
    LocalCluster,
    Message,
    MessageQueue,
    MinimqError,
    Producer,
    SendInterceptor,
    SendReceipt,
    by_hash,
)
from minimq.aio import Producer as AsyncProducer
from minimq.sending import producer_core
from minimq.sending.selectors import Selector
from minimq_common.errors import Closed, InvalidArgument, SendFailed, TopicNotFound
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


@pytest.mark.fault
def test_those_behind_a_broker_that_is_gone_do_not_wait_one_after_the_other(single: LocalCluster) -> None:
    queue = MessageQueue("t", "broker-a", 0)
    with Producer(single.nameserver, send_timeout_s=5.0, batch_messages=1) as producer:
        producer.send(Message("t", b"x"), queue=queue)
        single.brokers[0].kill()
        began = time.monotonic()
        futures = [producer.send_async(Message("t", b"x"), queue=queue) for _ in range(100)]
        for future in futures:
            assert isinstance(future.exception(2 * TIMEOUT_S), SendFailed)
        assert time.monotonic() - began < 60.0  # and not 100 times five seconds


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


def test_what_comes_while_others_wait_for_room_does_not_overtake_them(cluster: LocalCluster, topic: str) -> None:
    queue = MessageQueue(topic, "broker-a", 0)

    async def run() -> None:
        async with AsyncProducer(cluster.nameserver, buffer_bytes=2_000) as producer:
            await producer.send(Message(topic, b"x"), queue=queue)
            sizes = [900, 700, 10] * 100
            receipts = await asyncio.gather(
                *(producer.send(Message(topic, bytes(size)), queue=queue) for size in sizes)
            )
            offsets = [receipt.queue_offset for receipt in receipts]
            assert offsets == sorted(offsets)

    asyncio.run(run())


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


def test_a_callback_that_ends_its_thread_harms_no_other(
    cluster: LocalCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(receipt: SendReceipt | None, error: MinimqError | None) -> None:
        raise SystemExit

    with Producer(cluster.nameserver) as producer:
        futures = [
            producer.send_async(Message(topic, b"x"), callback=leave if number == 20 else None) for number in range(200)
        ]
        for future in futures:
            assert future.result(TIMEOUT_S).queue.topic == topic
    assert "a callback" in caplog.text


# ---- interceptors that see every end ------------------------------------------------------------


class Paired(SendInterceptor):
    """Notes what it saw, and in which order."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name = name
        self._calls = calls
        self.open = 0

    def before_send(self, message: Message) -> Message:
        self.open += 1
        self._calls.append(f"before {self._name}")
        return message

    def after_send(self, message: Message, receipt: SendReceipt | None, error: MinimqError | None) -> None:
        self.open -= 1
        self._calls.append(f"after {self._name}")


def test_whatever_was_seen_before_is_seen_after_in_the_reverse_order(cluster: LocalCluster, topic: str) -> None:
    calls: list[str] = []
    outer, inner = Paired("outer", calls), Paired("inner", calls)
    with Producer(cluster.nameserver, interceptors=[outer, inner]) as producer:
        producer.send(Message(topic, b"x"))
        assert calls == ["before outer", "before inner", "after inner", "after outer"]
        with pytest.raises(InvalidArgument):
            producer.send(Message.tombstone(topic, "key"))
        with pytest.raises(TopicNotFound):
            producer.send(Message(topic + "-gone", b"x"))
        with pytest.raises(InvalidArgument):
            producer.send_many([Message(topic, b"x")] * 700 + [Message.tombstone(topic, "key")])

        def breaks() -> Iterator[Message]:
            yield Message(topic, b"x")
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            producer.send_many(breaks())
        producer.send_many([Message(topic, b"x")] * 5_000)
    assert (outer.open, inner.open) == (0, 0)


def test_an_interceptor_that_forgets_to_return_is_named(cluster: LocalCluster, topic: str) -> None:
    class Forgets(SendInterceptor):
        def before_send(self, message: Message) -> Message:
            return None  # type: ignore[return-value]

    said = r"Forgets\.before_send returned None: return the message"
    with Producer(cluster.nameserver, interceptors=[Forgets()]) as producer, pytest.raises(InvalidArgument, match=said):
        producer.send(Message(topic, b"x"))
    with pytest.raises(InvalidArgument, match="is not an instance of SendInterceptor"):
        Producer(cluster.nameserver, interceptors=[Forgets])  # type: ignore[list-item]


def test_a_selector_that_returns_nonsense_is_named(cluster: LocalCluster, topic: str) -> None:
    def nothing(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        return None  # type: ignore[return-value]

    with Producer(cluster.nameserver) as producer, pytest.raises(InvalidArgument, match="the selector returned None"):
        producer.send(Message(topic, b"x"), selector=nothing)


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


def test_a_producer_of_another_process_says_so(cluster: LocalCluster, topic: str) -> None:
    producer = Producer(cluster.nameserver)
    producer._core._process.is_forked = True  # as if this process were a fork of the one that made it
    with pytest.raises(Closed, match="fork before the first client is made"):
        producer.send(Message(topic, b"x"))
    with pytest.raises(Closed, match="fork before the first client is made"):
        producer.send_many([Message(topic, b"x")])
    producer._core._process.is_forked = False
    producer.close()


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
