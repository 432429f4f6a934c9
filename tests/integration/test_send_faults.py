"""A producer with changed messages, brokers that hang, and faults of its own, with real servers."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import NoneType

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, SendReceipt
from minimq_common.errors import BufferFull, Closed, InvalidArgument, MinimqError, SendFailed, Unavailable
from support.reading import check_brokers, read_all
from support.waiting import wait_until

TIMEOUT_S = 30.0


@pytest.fixture
def single(tmp_path: Path) -> Iterator[LocalCluster]:
    """One broker, with a topic of two queues."""
    yield from _cluster(tmp_path, 1)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two brokers, with a topic of two queues on each."""
    yield from _cluster(tmp_path, 2)


def _cluster(data_dir: Path, brokers: int) -> Iterator[LocalCluster]:
    with LocalCluster(brokers=brokers, data_dir=data_dir) as made:
        with Admin(made.nameserver) as admin:
            admin.create_topic("t", queues=2)
        yield made
    check_brokers(made)


def bodies(cluster: LocalCluster) -> list[bytes]:
    return [message.body for message in read_all(cluster.nameserver, "t")]


def is_under_way(producer: Producer) -> bool:
    """Tell whether a request of a producer has no answer yet."""
    return bool(producer._core.sender._accumulator._in_flight)


# ---- messages that change -----------------------------------------------------------------------


@pytest.mark.fault
@pytest.mark.parametrize("queue", [None, MessageQueue("t", "broker-a", 1)], ids=["any", "chosen"])
@pytest.mark.parametrize("added", ["a\0b", 5], ids=repr)
def test_a_message_that_was_changed_meanwhile_fails_with_those_it_travels_with(
    single: LocalCluster, queue: MessageQueue | None, added: object
) -> None:
    [broker] = single.brokers
    with Producer(single.nameserver, max_in_flight_requests=1, send_timeout_s=60) as producer:
        producer.send(Message("t", b"0"))
        broker.pause()
        first = producer.send_async(Message("t", b"1"), queue=queue)  # takes the whole window
        wait_until(lambda: is_under_way(producer))
        keys: list[object] = ["k"]
        spoiled = producer.send_async(Message("t", b"2", keys=keys), queue=queue)  # type: ignore[arg-type]
        beside = producer.send_async(Message("t", b"3"), queue=queue)
        keys.append(added)
        broker.resume()

        assert first.exception(TIMEOUT_S) is None
        for future in (spoiled, beside):
            assert isinstance(future.exception(TIMEOUT_S), InvalidArgument)
        assert "was changed after it had been sent" in str(spoiled.exception())
        for number in (4, 5, 6):
            following = producer.send_async(Message("t", b"%d" % number), queue=queue)
            assert following.exception(TIMEOUT_S) is None
    assert sorted(bodies(single)) == [b"0", b"1", b"4", b"5", b"6"]


# ---- brokers that hang --------------------------------------------------------------------------


@pytest.mark.fault
def test_with_one_hung_broker_of_two_every_message_is_sent(pair: LocalCluster) -> None:
    hung, _ = pair.brokers
    with Producer(pair.nameserver, batch_messages=20) as producer:
        producer.send_many([Message("t", b"warm")] * 100)
        hung.pause()
        futures = [producer.send_async(Message("t", b"%d" % number)) for number in range(2000)]
        receipts = [future.result(TIMEOUT_S) for future in futures]
        receipts += producer.send_many(Message("t", b"%d" % number) for number in range(2000, 4000))
        assert {receipt.queue.broker_name for receipt in receipts} == {"broker-b"}
        hung.resume()
        again = MessageQueue("t", "broker-a", 0)
        assert producer.send(Message("t", b"4000"), queue=again).queue == again
    assert {int(body) for body in bodies(pair) if body != b"warm"} == set(range(4001))


@pytest.mark.fault
def test_closing_while_a_broker_hangs_counts_exactly_the_messages_that_it_has(pair: LocalCluster) -> None:
    hung, well = pair.brokers
    producer = Producer(pair.nameserver, send_timeout_s=60, batch_messages=2)
    producer.send_many([Message("t", b"warm")] * 100)
    hung.pause()
    places = [MessageQueue("t", broker.name, number) for broker in (hung, well) for number in (0, 1)]
    futures = [producer.send_async(Message("t", b"x"), queue=places[number % 4]) for number in range(20)]
    for future in futures[2::4] + futures[3::4]:
        future.result(TIMEOUT_S)
    with pytest.raises(SendFailed, match=r"^10 messages were not acknowledged within 1.0 s"):
        producer.close(1.0)
    assert all(future.done() for future in futures)
    assert [type(future.exception(0)) for future in futures] == [Closed, Closed, NoneType, NoneType] * 5
    hung.resume()
    stored = [message for message in read_all(pair.nameserver, "t") if message.body == b"x"]
    assert sum(message.queue.broker_name == well.name for message in stored) == 10


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.fault
def test_tries_that_were_given_up_take_no_memory_and_are_not_stored(single: LocalCluster) -> None:
    """Some 300 attempts of 1 MiB each: they must not gather here, nor at the broker when it goes on."""
    [broker] = single.brokers
    body = bytes(1 << 20)
    with Producer(single.nameserver, send_timeout_s=2.0, max_in_flight_requests=32) as producer:
        producer.send(Message("t", b"warm"))
        broker.pause()
        after_round: list[int] = []
        attempts = 0
        for _ in range(5):
            futures = [producer.send_async(Message("t", body)) for _ in range(32)]
            for future in futures:
                error = future.exception(TIMEOUT_S)
                assert isinstance(error, SendFailed)
                attempts += len(error.attempts)
            after_round.append(resident_bytes())
        broker.resume()
        producer.send(Message("t", b"end"), queue=MessageQueue("t", "broker-a", 0))
    stored = bodies(single).count(body)
    assert attempts >= 256
    grown = after_round[-1] - after_round[0]  # the first round shows what a full window takes
    assert grown < 128 << 20, f"{grown >> 20} MiB for {attempts} attempts"
    assert stored <= 8, f"{stored} messages that were given up were stored, of {attempts} attempts"


# ---- name servers that are gone -----------------------------------------------------------------


@pytest.mark.fault
def test_without_any_name_server_a_producer_goes_on_with_what_it_knows(tmp_path: Path) -> None:
    with LocalCluster(brokers=2, nameservers=2, data_dir=tmp_path) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        with Producer(cluster.nameserver, send_timeout_s=10) as producer:
            numbers = itertools.count()

            def brokers_of(count: int) -> set[str]:
                messages = [Message("t", b"%d" % next(numbers)) for _ in range(count)]
                return {producer.send(message).queue.broker_name for message in messages}

            assert brokers_of(8) == {"broker-a", "broker-b"}
            for nameserver in cluster.nameservers:
                nameserver.kill()
            assert brokers_of(8) == {"broker-a", "broker-b"}
            cluster.brokers[0].kill()
            assert brokers_of(20) == {"broker-b"}
            cluster.brokers[0].start()
            wait_until(lambda: "broker-a" in brokers_of(4), TIMEOUT_S)
            with pytest.raises(Unavailable, match="none of 2 name servers answers"):
                producer.send(Message("unknown", b"x"))
        for nameserver in cluster.nameservers:
            nameserver.start()
        sent = next(numbers)
        assert set(map(int, bodies(cluster))) == set(range(sent))
    check_brokers(cluster)


# ---- faults of its own --------------------------------------------------------------------------


# ---- a full buffer ------------------------------------------------------------------------------


@pytest.mark.fault
def test_a_full_buffer_raises_when_told_so(single: LocalCluster) -> None:
    [broker] = single.brokers
    message = Message("t", bytes(10_000))
    with Producer(single.nameserver, buffer_bytes=100_000, send_timeout_s=60, block_when_full=False) as producer:
        producer.send(message)
        broker.pause()
        futures = [producer.send_async(message) for _ in range(9)]
        with pytest.raises(BufferFull, match="block_when_full"):
            producer.send_async(message)
        with pytest.raises(BufferFull):
            producer.send(message)
        with pytest.raises(BufferFull):
            producer.send_many([message])
        broker.resume()
        for future in futures:
            assert future.exception(TIMEOUT_S) is None
        wait_until(lambda: producer.send_many([message]), TIMEOUT_S)
    assert len(bodies(single)) == 11


def test_what_waits_for_callbacks_is_bounded_by_the_buffer(single: LocalCluster) -> None:
    may_end = threading.Event()

    def wait(_receipt: SendReceipt | None, _error: MinimqError | None) -> None:
        may_end.wait(TIMEOUT_S)

    with Producer(single.nameserver, buffer_bytes=20_000, block_when_full=False) as producer:
        with pytest.raises(BufferFull):  # noqa: PT012 - any of them may raise
            for _ in range(1_000):
                producer.send_async(Message("t", bytes(100)), callback=wait).result(TIMEOUT_S)
        may_end.set()
        producer.flush(TIMEOUT_S)
        assert producer.statistics().buffered_bytes == 0
