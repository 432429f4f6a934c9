"""Delayed messages on real servers: never early, each once, recalled or delivered, and listed meanwhile."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from msgspec import structs

from minimq import Admin, LocalCluster, Message, Producer, RecallResult, SendReceipt
from minimq.features.delayed.recall_handle import RecallHandle
from minimq_common.errors import InvalidArgument, TopicNotFound
from minimq_proto.v1 import delayed_pb2
from minimq_proto.v1.delayed_pb2_grpc import DelayedStub
from support.command import Minimq
from support.raw_sender import RawSender
from support.reading import read_all
from support.waiting import wait_until

#: Longer than any test lasts.
LATER_S = 3_600.0


def arrived(cluster: LocalCluster, topic: str, count: int) -> Counter[bytes]:
    """Return the bodies in the queues of a topic once there are so many."""

    def found() -> Counter[bytes] | None:
        bodies = Counter(message.body for message in read_all(cluster.nameserver, topic))
        return bodies if bodies.total() >= count else None

    return wait_until(found, what=f"{count} messages of {topic}") or Counter()


def due(receipt: SendReceipt) -> datetime:
    assert receipt.due_at is not None
    return receipt.due_at


# ---- delivery -----------------------------------------------------------------------------------


# ---- recalling ----------------------------------------------------------------------------------


def test_a_message_that_races_its_recall_is_either_recalled_or_delivered(
    cluster: LocalCluster, producer: Producer, topic: str
) -> None:
    """Never both, and never neither: the delays end while the recalls go on."""
    count = 300
    moment = time.time() + 1.0
    futures = [
        producer.send_async(Message(topic, b"%d" % number, deliver_at=moment + number / 1000, recallable=True))
        for number in range(count)
    ]
    receipts = [future.result() for future in futures]

    def recall(receipt: SendReceipt) -> RecallResult:
        assert receipt.recall_handle is not None
        return producer.recall(receipt.recall_handle)

    time.sleep(max(moment - time.time(), 0))  # the race begins
    with ThreadPoolExecutor(4) as pool:
        results = [*pool.map(recall, receipts)]
    expected = Counter(b"%d" % number for number, result in enumerate(results) if not result)
    print(Counter(results))
    marker = producer.send(Message(topic, b"end", deliver_after_s=0.5))  # due after all others
    assert marker.due_at is not None
    wait_until(lambda: b"end" in {message.body for message in read_all(cluster.nameserver, topic)})
    assert arrived(cluster, topic, 1) - Counter([b"end"]) == expected


def test_foreign_handles_are_rejected_or_too_late(cluster: LocalCluster, producer: Producer, topic: str) -> None:
    queue = producer.send(Message(topic, b"x", deliver_after_s=LATER_S, recallable=True)).queue
    with pytest.raises(InvalidArgument, match="of broker 'elsewhere', which does not carry topic"):
        producer.recall(str(RecallHandle(topic, "elsewhere", 1, 1)))
    with pytest.raises(TopicNotFound):
        producer.recall(str(RecallHandle("no-such-topic", queue.broker_name, 1, 1)))
    assert producer.recall(str(RecallHandle(topic, queue.broker_name, 1, 1))) is RecallResult.TOO_LATE
    far_ms = int((time.time() + LATER_S) * 1000)
    assert producer.recall(str(RecallHandle(topic, queue.broker_name, far_ms, 1))) is RecallResult.TOO_LATE


def test_the_handle_of_another_topic_recalls_nothing(
    cluster: LocalCluster, producer: Producer, admin: Admin, topic: str, new_name: Callable[[], str]
) -> None:
    """The right to write to one topic does not recall what another has."""
    other = new_name()
    admin.create_topic(other, queues=1)
    receipt = producer.send(Message(topic, b"x", deliver_after_s=LATER_S, recallable=True))
    handle = RecallHandle.parse(receipt.recall_handle)
    assert producer.recall(str(structs.replace(handle, topic=other))) is RecallResult.TOO_LATE
    assert producer.recall(str(handle)) is RecallResult.RECALLED


def test_what_is_not_recallable_says_so(cluster: LocalCluster, producer: Producer, topic: str) -> None:
    receipt = producer.send(Message(topic, b"x", deliver_after_s=LATER_S))
    assert receipt.recall_handle is None
    broker = receipt.queue.broker_name
    [address] = [each.address for each in cluster.brokers if each.broker_name == broker]
    with RawSender(address) as sender:
        listed = sender.of(DelayedStub).ListDelayed(delayed_pb2.ListDelayedRequest(topic=topic, max_batches=1))
    [waiting] = listed.batches
    guessed = RecallHandle(topic, broker, waiting.key.due_ms, waiting.key.recall_id)
    with pytest.raises(InvalidArgument, match="send it with recallable=True"):
        producer.recall(str(guessed))


# ---- bad input ----------------------------------------------------------------------------------


def test_bounds_of_recalls_and_lists_are_kept(cluster: LocalCluster, topic: str) -> None:
    keys = [delayed_pb2.DelayedKey(due_ms=1, recall_id=number) for number in range(1_001)]
    with RawSender(cluster.brokers[0].address) as sender:
        for request in (
            delayed_pb2.ListDelayedRequest(topic=topic, max_batches=0),
            delayed_pb2.ListDelayedRequest(topic=topic, max_batches=1_001),
            delayed_pb2.ListDelayedRequest(topic=topic, max_batches=1, from_ms=-1),
            delayed_pb2.ListDelayedRequest(topic="no topic", max_batches=1),
        ):
            with pytest.raises(grpc.RpcError):
                sender.of(DelayedStub).ListDelayed(request, timeout=30)
        with pytest.raises(grpc.RpcError):
            sender.of(DelayedStub).Recall(delayed_pb2.RecallRequest(topic=topic, keys=keys), timeout=30)


# ---- repeats ------------------------------------------------------------------------------------


# ---- listing ------------------------------------------------------------------------------------


def test_waiting_messages_are_listed_in_the_order_in_which_they_are_due(
    cluster: LocalCluster, producer: Producer, admin: Admin, topic: str
) -> None:
    began = datetime.now(UTC)
    days = [5, 1, 3, 2, 4]
    for day in days:
        producer.send(Message(topic, b"%d" % day, deliver_at=began + timedelta(days=day), recallable=day % 2 == 1))
    waiting = [*admin.delayed_messages(topic)]
    assert [round((each.due_at - began) / timedelta(days=1)) for each in waiting] == sorted(days)
    assert [each.recall_handle is not None for each in waiting] == [True, False, True, False, True]
    assert all(began - timedelta(seconds=1) <= each.stored_at for each in waiting)
    some = admin.delayed_messages(topic, since=began + timedelta(days=1, hours=12), until=began + timedelta(days=4))
    assert [round((each.due_at - began) / timedelta(days=1)) for each in some] == [2, 3]
    [totals] = admin.delayed_totals([topic])
    assert (totals.messages, totals.batches, totals.next_due_at) == (5, 5, waiting[0].due_at)


# ---- the command --------------------------------------------------------------------------------


@pytest.fixture
def minimq(cluster: LocalCluster) -> Minimq:
    return Minimq(cluster.nameserver)


def test_lines_are_produced_listed_and_recalled(cluster: LocalCluster, topic: str, minimq: Minimq) -> None:
    minimq("produce", topic, "--after", "1h", "--recallable", stdin=b"one\ntwo\n")
    minimq("produce", topic, "--at", "2020-01-01T00:00Z", stdin=b"past\n")
    lines = [
        json.dumps({"body": "three", "deliver_after_s": 7200}),
        json.dumps({"body": "four", "deliver_at": (datetime.now(UTC) + timedelta(hours=3)).isoformat()}),
        json.dumps({"body": "five"}),
    ]
    minimq("produce", topic, "--input", "jsonl", stdin="\n".join(lines).encode())
    assert arrived(cluster, topic, 2) == Counter([b"past", b"five"])

    listed = minimq.json("delayed", "list", "--topic", topic)
    assert sum(row["messages"] for row in listed) == 4
    handles = [row["recall_handle"] for row in listed if row["recall_handle"]]
    assert len(handles) == 2
    assert minimq("delayed", "recall", handles[0]).split()[-1] == "recalled"
    assert minimq("delayed", "recall", handles[0]).split()[-2:] == ["already", "recalled"]
    gone = structs.replace(RecallHandle.parse(handles[0]), due_ms=1)
    assert "too late" in minimq("delayed", "recall", str(gone), status=1)
    assert "is no recall handle" in minimq("delayed", "recall", "nonsense", status=2)
    text = minimq("delayed", "list", "--topic", topic)
    assert "Recall handle" in text
    assert handles[1] in text
    assert topic in minimq("delayed", "list")
    lines = minimq("peek", topic, "--output", "json").splitlines()
    assert ["due_at" in json.loads(line) for line in lines] == [False, False]  # these were due on arrival
    [row] = [row for row in minimq.json("delayed", "list") if row["topic"] == topic]
    assert row["messages"] == 3
