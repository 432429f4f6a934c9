"""Few messages are spread over the queues of their topic, so that all workers of a group get some."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from minimq import LocalCluster, Message, MessageQueue, Producer, ReceivedMessage, SendReceipt, by_hash
from support.reading import read_all

TIMEOUT_S = 30.0


@pytest.fixture
def producer(cluster: LocalCluster) -> Iterator[Producer]:
    with Producer(cluster.nameserver, fault_avoidance=False) as made:  # a slow machine shall not matter
        yield made


def numbered(topic: str, count: int) -> list[Message]:
    return [Message(topic, b"%d" % number, keys=[f"k{number % 3}"]) for number in range(count)]


def by_queue(receipts: list[SendReceipt]) -> Counter[MessageQueue]:
    return Counter(receipt.queue for receipt in receipts)


def stored(messages: list[ReceivedMessage]) -> dict[tuple[MessageQueue, int], bytes]:
    return {(message.queue, message.queue_offset): message.body for message in messages}


@pytest.mark.parametrize("given", [list, iter], ids=["list", "iterator"])
def test_a_call_that_fills_no_batch_gives_each_queue_its_share(
    cluster: LocalCluster, producer: Producer, topic: str, given: Callable[[list[Message]], Iterator[Message]]
) -> None:
    messages = numbered(topic, 1000)
    receipts = producer.send_many(given(messages))
    shares = by_queue(receipts)
    assert sorted(shares.values()) == [125] * 8
    bodies = stored(read_all(cluster.nameserver, topic))
    assert [bodies[receipt.queue, receipt.queue_offset] for receipt in receipts] == [item.body for item in messages]
    told = producer.statistics()
    assert (told.batches, told.buffered_messages, told.buffered_bytes) == (8, 0, 0)


def test_what_is_for_one_queue_stays_together_and_in_order(
    cluster: LocalCluster, producer: Producer, topic: str
) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    receipts = producer.send_many(numbered(topic, 1000), queue=queue)
    assert [(receipt.queue, receipt.queue_offset) for receipt in receipts] == [(queue, at) for at in range(1000)]
    assert producer.statistics().batches == 1
    keyed = producer.send_many(numbered(topic, 1000), selector=by_hash())
    assert producer.statistics().batches == 1 + len(by_queue(keyed))
    last: dict[MessageQueue, int] = {}
    for receipt in keyed:
        assert receipt.queue_offset > last.get(receipt.queue, -1)
        last[receipt.queue] = receipt.queue_offset


def test_single_messages_that_gather_are_spread_too(producer: Producer, topic: str) -> None:
    go_on, held = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go_on.wait(TIMEOUT_S)

    producer.send(Message(topic, b"first"))
    producer._core.client.connection.call_soon(hold)  # no answer is taken in meanwhile
    assert held.wait(TIMEOUT_S)
    futures = [producer.send_async(message) for message in numbered(topic, 1000)]
    go_on.set()
    shares = by_queue([future.result(TIMEOUT_S) for future in futures])
    assert len(shares) == 8
    assert max(shares.values()) < 400
