"""The broker and the queues of a transaction."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minimq.connection.broker_troubles import BrokerTroubles
from minimq.sending.interceptor import Interceptors
from minimq.sending.pending_batch import PendingMessage
from minimq.sending.placement import Part, PlacedMessages, bound_queue, brokers_of, divided
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import SendStatus
from minimq.sending.transaction_manager import TransactionManager, _receipts
from minimq_common.errors import InvalidArgument, TopicNotFound
from minimq_common.model import MASTER_ID, BrokerData, Message, MessageQueue, TopicRoute
from minimq_proto.v1 import broker_pb2


def queue(topic: str, broker: str, number: int = 0) -> MessageQueue:
    return MessageQueue(topic, broker, number)


def item(topic: str, to: MessageQueue | None = None, group: str | None = None, size: int = 10) -> PendingMessage:
    return PendingMessage(Message(topic, b"x", message_group=group), to, size, None)


TOPICS = {
    "both": {"a": [queue("both", "a")], "b": [queue("both", "b")]},
    "left": {"a": [queue("left", "a")]},
    "right": {"b": [queue("right", "b")]},
}


def at(*names: str) -> dict[str, dict[str, list[MessageQueue]]]:
    return {name: TOPICS[name] for name in names}


def test_all_topics_have_to_be_at_the_broker() -> None:
    assert brokers_of(at("both"), None, None) == ["a", "b"]
    assert brokers_of(at("both", "left"), None, None) == ["a"]
    assert brokers_of(at("both"), queue("both", "b"), None) == ["b"]
    assert brokers_of(at("both"), None, queue("in", "b")) == ["b"]
    assert brokers_of({}, None, queue("in", "b")) == ["b"]
    with pytest.raises(TopicNotFound, match="left is on a; right is on b"):
        brokers_of(at("left", "right"), None, None)
    with pytest.raises(TopicNotFound, match="broker b does not take messages of all topics"):
        brokers_of(at("left"), None, queue("in", "b"))
    with pytest.raises(InvalidArgument, match="at another broker"):
        brokers_of(at("both"), queue("both", "a"), queue("in", "b"))


def test_messages_that_have_to_be_somewhere_bind_all_others() -> None:
    first, second = queue("both", "a"), queue("both", "b")
    assert bound_queue([None, None]) is None
    assert bound_queue([None, first, None]) == first
    assert bound_queue([queue("both", "a", 3), first]) == first
    with pytest.raises(InvalidArgument, match="different brokers"):
        bound_queue([first, None, second])


def parts_of(
    messages: list[PendingMessage], queues: list[MessageQueue | None], most: int = 9
) -> list[tuple[str, int | None, str | None, list[int]]]:
    parts = divided(messages, queues, ProducerOptions(batch_messages=most, batch_bytes=100))
    return [
        (part.topic, None if part.queue is None else part.queue.queue_id, part.message_group, part.indices)
        for part in parts
    ]


def test_messages_for_one_queue_are_batches_in_their_order() -> None:
    both, left, other = queue("both", "a"), queue("left", "a", 1), queue("both", "a", 7)
    messages = [item("both"), item("left"), item("both"), item("both"), item("both", size=95)]
    assert parts_of(messages, [both, left, other, both, both], most=2) == [
        ("both", 0, None, [0, 3]),
        ("left", 1, None, [1]),
        ("both", 7, None, [2]),
        ("both", 0, None, [4]),  # there are two before it
    ]
    alone = [item("both", size=60), item("both", size=60)]
    assert [part[-1] for part in parts_of(alone, [both, both])] == [[0], [1]]


@pytest.mark.parametrize(("avoids", "chosen"), [(True, ["b"]), (False, ["a", "b"])])
def test_a_transaction_avoids_a_slow_broker_unless_told_otherwise(avoids: bool, chosen: list[str]) -> None:
    troubles = BrokerTroubles()
    troubles.measured("a:1", 20.0, time.monotonic())
    client = SimpleNamespace(connection=SimpleNamespace(health=troubles))
    options = ProducerOptions(fault_avoidance=avoids)
    transactor = TransactionManager(
        cast("Any", client), options, cast("Any", None), cast("Any", None), Interceptors(())
    )
    brokers = {name: BrokerData("default", name, {MASTER_ID: f"{name}:1"}) for name in "ab"}
    assert [*transactor._best(TopicRoute("both", (), brokers), ["a", "b"])] == chosen


def test_the_status_of_a_newer_broker_is_no_error_of_a_stored_transaction() -> None:
    queue = MessageQueue("t", "a", 0)
    placed = PlacedMessages("a", "t", [(queue, Part("t", queue, None, indices=[0]))], 1, others=False)
    [(_, batch)] = _receipts(placed, [broker_pb2.AppendResult(status=99)], 7)  # type: ignore[arg-type]
    assert batch.status is SendStatus.SEND_OK
