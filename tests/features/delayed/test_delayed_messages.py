"""Delayed messages on real servers: never early, each once, recalled or delivered, and listed meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from msgspec import structs

from minimq import Admin, LocalCluster, Message, Producer, RecallResult, SendReceipt, WorkQueueConsumer, aio
from minimq.features.delayed.recall_handle import RecallHandle
from minimq_broker.features.delayed.delays import MAX_DELAY_MS
from minimq_common.errors import InvalidArgument, SendFailed, TopicNotFound
from minimq_proto.v1 import broker_pb2, delay_pb2
from support.command import Minimq
from support.raw_sender import RawSender
from support.reading import read_all
from support.stores import numbered_batch
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


@pytest.fixture(params=["plain", "aio"])
def send_all(request: pytest.FixtureRequest, cluster: LocalCluster) -> Callable[[list[Message]], list[SendReceipt]]:
    """Send messages in all ways that a producer has, in turn; return their receipts."""

    def plain(messages: list[Message]) -> list[SendReceipt]:
        with Producer(cluster.nameserver) as producer:
            receipts = [producer.send(message) for message in messages[::3]]
            receipts += [future.result() for future in [producer.send_async(each) for each in messages[1::3]]]
            return receipts + producer.send_many(messages[2::3])

    async def asynchronously(messages: list[Message]) -> list[SendReceipt]:
        async with aio.Producer(cluster.nameserver) as producer:
            receipts = [await producer.send(message) for message in messages[::3]]
            receipts += [await future for future in [await producer.send_async(each) for each in messages[1::3]]]
            return receipts + await producer.send_many(messages[2::3])

    if request.param == "plain":
        return plain
    return lambda messages: asyncio.run(asynchronously(messages))


# ---- delivery -----------------------------------------------------------------------------------


def test_messages_come_when_they_are_due_and_not_before(
    cluster: LocalCluster, topic: str, send_all: Callable[[list[Message]], list[SendReceipt]]
) -> None:
    began = datetime.now(UTC)
    moment = began + timedelta(seconds=1.5)
    messages = [Message(topic, b"after %d" % number, deliver_after_s=1.0) for number in range(6)]
    messages += [Message(topic, b"at %d" % number, deliver_at=moment) for number in range(6)]
    messages += [Message(topic, b"past %d" % number, deliver_at=began - timedelta(days=1)) for number in range(6)]
    messages += [Message(topic, b"now %d" % number) for number in range(6)]
    receipts = send_all(messages)
    assert [receipt.queue_offset < 0 for receipt in receipts] == [receipt.due_at is not None for receipt in receipts]
    for message, receipt in zip(messages[::3] + messages[1::3] + messages[2::3], receipts, strict=True):
        if message.body.startswith(b"after"):
            assert due(receipt) >= began + timedelta(seconds=1)
        elif message.body.startswith(b"at"):
            assert receipt.due_at is not None or datetime.now(UTC) > moment  # due when it came, on a busy machine
        else:
            assert receipt.due_at is None

    assert arrived(cluster, topic, 24) == Counter(message.body for message in messages)
    for received in read_all(cluster.nameserver, topic):
        if received.body.startswith(b"after"):
            assert received.stored_at >= began + timedelta(seconds=1)
        if received.body.startswith(b"at"):
            assert received.stored_at >= moment - timedelta(milliseconds=1)


def test_a_delayed_message_keeps_its_id_and_fields(cluster: LocalCluster, producer: Producer, topic: str) -> None:
    sent = Message(topic, b"boarding", tag="gate", keys=("LX14",), properties={"gate": "E36"}, deliver_after_s=0.3)
    receipt = producer.send(sent)
    arrived(cluster, topic, 1)
    [got] = read_all(cluster.nameserver, topic)
    assert got.message_id == receipt.message_id
    assert got.queue == receipt.queue
    assert got.due_at == receipt.due_at
    assert got.stored_at >= due(receipt)
    assert (got.body, got.tag, tuple(got.keys), dict(got.properties)) == (sent.body, "gate", ("LX14",), {"gate": "E36"})


def test_many_with_one_delay_travel_together_and_arrive_once(
    cluster: LocalCluster, producer: Producer, topic: str, admin: Admin
) -> None:
    count = 20_000
    receipts = producer.send_many(Message(topic, b"%d" % number, deliver_after_s=1.0) for number in range(count))
    assert len({receipt.batch.sequence for receipt in receipts}) < count / 50
    assert arrived(cluster, topic, count) == Counter(b"%d" % number for number in range(count))
    assert [each.messages for each in admin.delayed_totals([topic])] == [0]


def test_a_message_that_is_due_sooner_than_those_that_wait_is_not_held_up(
    cluster: LocalCluster, producer: Producer, topic: str
) -> None:
    producer.send(Message(topic, b"later", deliver_after_s=LATER_S))
    producer.send(Message(topic, b"soon", deliver_after_s=0.2))
    assert arrived(cluster, topic, 1) == Counter([b"soon"])


def test_a_work_queue_gets_delayed_messages(cluster: LocalCluster, producer: Producer, topic: str, group: str) -> None:
    with WorkQueueConsumer(cluster.nameserver, group=group) as consumer:
        consumer.subscribe(topic)
        receipt = producer.send(Message(topic, b"work", deliver_after_s=0.3))
        [message] = wait_until(lambda: consumer.receive(1))
        assert message.body == b"work"
        assert message.due_at == due(receipt)
        consumer.ack(message)


# ---- recalling ----------------------------------------------------------------------------------


def test_a_recalled_message_is_never_delivered(cluster: LocalCluster, producer: Producer, topic: str) -> None:
    recalled = producer.send(Message(topic, b"cancel", deliver_after_s=4.0, recallable=True))
    kept = producer.send(Message(topic, b"keep", deliver_after_s=4.2, recallable=True))
    assert recalled.recall_handle is not None
    assert kept.recall_handle is not None
    assert producer.recall(recalled.recall_handle) is RecallResult.RECALLED
    assert producer.recall(recalled.recall_handle) is RecallResult.ALREADY_RECALLED
    assert arrived(cluster, topic, 1) == Counter([b"keep"])  # which was due later
    assert producer.recall(kept.recall_handle) is RecallResult.TOO_LATE
    assert producer.recall(recalled.recall_handle)  # it is still known, or was too late for good


def test_anybody_may_recall(cluster: LocalCluster, producer: Producer, admin: Admin, topic: str) -> None:
    async def from_asyncio(handle: str) -> RecallResult:
        async with aio.Producer(cluster.nameserver) as other:
            return await other.recall(handle)

    first, second = (
        producer.send(Message(topic, b"x", deliver_after_s=LATER_S, recallable=True)).recall_handle for _ in range(2)
    )
    assert first is not None
    assert second is not None
    assert asyncio.run(from_asyncio(first)) is RecallResult.RECALLED
    assert admin.recall(second) is RecallResult.RECALLED


def test_each_recallable_message_is_recalled_by_itself(
    cluster: LocalCluster, producer: Producer, admin: Admin, topic: str
) -> None:
    receipts = producer.send_many(
        Message(topic, b"%d" % number, deliver_after_s=LATER_S, recallable=True) for number in range(20)
    )
    handles = [receipt.recall_handle for receipt in receipts]
    assert len(set(handles)) == 20
    assert None not in handles
    assert all(producer.recall(handle) for handle in handles[::2] if handle)
    waiting = [*admin.delayed_messages(topic)]
    assert {each.recall_handle for each in waiting} == set(handles[1::2])


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


@pytest.mark.parametrize("handle", ["", "nonsense", "pu6yY5SlbG9nc6hicm9rZXItYc8AAAGb", "x" * 10_000, None, 7])
def test_nonsense_is_no_recall_handle(producer: Producer, admin: Admin, handle: object) -> None:
    for recall in (producer.recall, admin.recall):
        with pytest.raises(InvalidArgument, match="recall handle"):
            recall(handle)  # type: ignore[arg-type]


def test_foreign_handles_are_rejected_or_too_late(cluster: LocalCluster, producer: Producer, topic: str) -> None:
    queue = producer.send(Message(topic, b"x", deliver_after_s=LATER_S, recallable=True)).queue
    with pytest.raises(InvalidArgument, match="of broker 'elsewhere', which does not carry topic"):
        producer.recall(str(RecallHandle(topic, "elsewhere", 1, 1)))
    with pytest.raises(TopicNotFound):
        producer.recall(str(RecallHandle("no-such-topic", queue.broker_name, 1, 1)))
    assert producer.recall(str(RecallHandle(topic, queue.broker_name, 1, 1))) is RecallResult.TOO_LATE
    far_ms = int((time.time() + LATER_S) * 1000)
    assert producer.recall(str(RecallHandle(topic, queue.broker_name, far_ms, 1))) is RecallResult.TOO_LATE


def test_a_recallable_message_that_was_due_at_once_has_a_handle_for_which_it_is_too_late(
    producer: Producer, topic: str
) -> None:
    receipt = producer.send(Message(topic, b"x", deliver_at=time.time() - 1, recallable=True))
    assert (receipt.due_at, receipt.queue_offset) == (None, 0)
    assert producer.recall(receipt.recall_handle) is RecallResult.TOO_LATE


def test_handles_with_numbers_out_of_range_are_none(producer: Producer, topic: str) -> None:
    for due_ms, recall_id in ((-1, 1), (1, -1), (1 << 63, 1), (1, (1 << 64) - 1)):
        with pytest.raises(InvalidArgument, match="is no recall handle"):
            producer.recall(str(RecallHandle(topic, "broker-a", due_ms, recall_id)))


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
        listed = sender.stub.ListDelayed(delay_pb2.ListDelayedRequest(topic=topic, max_batches=1))
    [waiting] = listed.batches
    guessed = RecallHandle(topic, broker, waiting.key.due_ms, waiting.key.recall_id)
    with pytest.raises(InvalidArgument, match="send it with recallable=True"):
        producer.recall(str(guessed))


# ---- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"deliver_after_s": -1}, "it must be 0 to"),
        ({"deliver_after_s": 367 * 86_400}, "366 days"),
        ({"deliver_at": datetime(2090, 1, 1, tzinfo=UTC)}, "more than 366 days ahead"),
        ({"deliver_after_s": 1, "deliver_at": 1e9}, "give one of them"),
        ({"recallable": True}, "without a due time cannot be recalled"),
        ({"deliver_after_s": 1, "message_group": "g"}, "FIFO topic"),
    ],
)
def test_a_wrong_due_time_is_rejected_before_anything_is_sent(
    cluster: LocalCluster, producer: Producer, topic: str, fields: dict[str, object], text: str
) -> None:
    wrong = Message(topic, b"x", **fields)  # type: ignore[arg-type]
    for send in (
        producer.send,
        producer.send_async,
        producer.send_one_way,
        lambda message: producer.send_many([message]),
    ):
        with pytest.raises(InvalidArgument, match=text):
            send(wrong)
    assert read_all(cluster.nameserver, topic) == []


def test_a_fifo_topic_rejects_delayed_messages(
    cluster: LocalCluster, producer: Producer, admin: Admin, new_name: Callable[[], str]
) -> None:
    name = new_name()
    admin.create_topic(name, queues=1, fifo=True)
    with pytest.raises(InvalidArgument, match="FIFO"):
        producer.send(Message(name, b"x", deliver_after_s=1))
    with pytest.raises(SendFailed, match="FIFO"):
        producer.send_many([Message(name, b"x", deliver_after_s=1)])


@pytest.mark.parametrize(
    ("delay", "code"),
    [
        (delay_pb2.Delay(delay_ms=MAX_DELAY_MS + 1), "INVALID_ARGUMENT"),
        (delay_pb2.Delay(delay_ms=-1), "INVALID_ARGUMENT"),
        (delay_pb2.Delay(due_ms=-1), "INVALID_ARGUMENT"),
        (delay_pb2.Delay(due_ms=(1 << 63) - 1), "INVALID_ARGUMENT"),
    ],
)
def test_a_broker_rejects_wrong_due_times(cluster: LocalCluster, topic: str, delay: delay_pb2.Delay, code: str) -> None:
    with RawSender(cluster.brokers[0].address) as sender:
        request = broker_pb2.AppendRequest(topic=topic, batch=numbered_batch(7, 1, b"x"), delay=delay)
        response = next(sender.stub.Append(iter([request]), timeout=30))
    [result] = response.results
    assert result.failure.code.upper().replace("-", "_") in {code, "INVALIDARGUMENT"}, result


def test_a_broker_rejects_a_delay_in_a_transaction(cluster: LocalCluster, topic: str) -> None:
    request = broker_pb2.AppendRequest(
        topic=topic,
        batch=numbered_batch(7, 2, b"x"),
        delay=delay_pb2.Delay(delay_ms=1),
        transaction=broker_pb2.Transaction(name="t", number=1),
    )
    with RawSender(cluster.brokers[0].address) as sender:
        [response] = sender.stub.Append(iter([request]), timeout=30)
    assert "cannot be delayed" in response.results[0].failure.message


def test_bounds_of_recalls_and_lists_are_kept(cluster: LocalCluster, topic: str) -> None:
    keys = [delay_pb2.DelayedKey(due_ms=1, recall_id=number) for number in range(1_001)]
    with RawSender(cluster.brokers[0].address) as sender:
        for request in (
            delay_pb2.ListDelayedRequest(topic=topic, max_batches=0),
            delay_pb2.ListDelayedRequest(topic=topic, max_batches=1_001),
            delay_pb2.ListDelayedRequest(topic=topic, max_batches=1, from_ms=-1),
            delay_pb2.ListDelayedRequest(topic="no topic", max_batches=1),
        ):
            with pytest.raises(grpc.RpcError):
                sender.stub.ListDelayed(request, timeout=30)
        with pytest.raises(grpc.RpcError):
            sender.stub.Recall(delay_pb2.RecallRequest(topic=topic, keys=keys), timeout=30)


# ---- repeats ------------------------------------------------------------------------------------


def test_a_repeated_batch_waits_once_and_has_the_same_handle(cluster: LocalCluster, topic: str) -> None:
    batch = numbered_batch(0xABC, 5, b"once")
    request = broker_pb2.AppendRequest(topic=topic, batch=batch, delay=delay_pb2.Delay(delay_ms=4_000, recallable=True))
    with RawSender(cluster.brokers[0].address) as sender:
        answers = [next(iter(sender.stub.Append(iter([request]), timeout=30))).results[0] for _ in range(3)]
        assert len({(answer.due_ms, answer.recall_id, answer.queue_id) for answer in answers}) == 1
        assert answers[0].recall_id
        assert [answer.status for answer in answers[1:]] == [broker_pb2.SEND_STATUS_ALREADY_STORED] * 2
        assert arrived(cluster, topic, 1) == Counter([b"once"])
        [late] = next(iter(sender.stub.Append(iter([request]), timeout=30))).results
        assert late.status == broker_pb2.SEND_STATUS_ALREADY_STORED
    assert arrived(cluster, topic, 1) == Counter([b"once"])


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


def test_more_than_a_page_is_listed(cluster: LocalCluster, producer: Producer, admin: Admin, topic: str) -> None:
    count = 2_500
    producer.send_many(
        Message(topic, b"%d" % number, deliver_after_s=LATER_S + number, recallable=True) for number in range(count)
    )
    waiting = [*admin.delayed_messages(topic)]
    assert len({each.recall_handle for each in waiting}) == count
    assert [each.due_at for each in waiting] == sorted(each.due_at for each in waiting)


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
    assert minimq("delayed", "recall", handles[0]) == "recalled\n"
    assert minimq("delayed", "recall", handles[0]) == "already recalled\n"
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


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--after", "1h", "--at", "2030-01-01T00:00Z"), "exclude each other"),
        (("--after", "soon"), "give a time such as 30s"),
        (("--at", "2026-12-24T18:00"), "has no time zone"),
        (("--after", "400d"), "366 days"),
        (("--recallable",), "cannot be recalled"),
    ],
)
def test_wrong_times_of_the_command_say_how_to_write_them(
    topic: str, minimq: Minimq, words: tuple[str, ...], text: str
) -> None:
    assert text in minimq("produce", topic, *words, stdin=b"x\n", status=2)


def test_a_wrong_line_is_named(topic: str, minimq: Minimq) -> None:
    lines = json.dumps({"body": "x"}) + "\n" + json.dumps({"body": "y", "deliver_after_s": -1})
    said = minimq("produce", topic, "--input", "jsonl", stdin=lines.encode(), status=1)
    assert "line 2: deliver_after_s is -1" in said
