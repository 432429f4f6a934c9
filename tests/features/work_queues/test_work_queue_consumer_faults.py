"""Work queue consumers during faults: they keep what they hold, and others get the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from minimq import Admin, Cluster, ConsumeResult, LocalCluster, Message, Producer, PushConsumer, WorkQueueConsumer
from minimq.errors import (
    Closed,
    DeadlineExceeded,
    GroupNotFound,
    HandleExpired,
    InvalidArgument,
    SystemBusy,
    TopicNotFound,
)
from minimq.features.work_queues.pop_stream import Answered, PopStream, SettleKey
from minimq.features.work_queues.settler import DONE
from minimq.features.work_queues.work_queue_message import Span, WorkQueueMessage
from support.detour import lead
from support.hand_out_hold import HandOutHold
from support.waiting import wait_until

TIMEOUT_S = 60.0
#: Longer than the grace of consumers that are gone.
GRACE_S, LONGER_S = 3.0, 5.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    options = {"session_grace_s": GRACE_S}
    with LocalCluster(brokers=2, data_dir=tmp_path_factory.mktemp("faults"), broker_options=options) as cluster:
        yield cluster


@pytest.fixture
def topic(pair: LocalCluster, new_name: Callable[[], str]) -> str:
    """Return a topic with one queue at the first broker."""
    name = new_name()
    with Admin(pair.nameserver) as admin:
        admin.create_topic(name, queues=1, brokers=["broker-a"])
    return name


def fill(cluster: LocalCluster, topic: str, count: int) -> None:
    with Producer(cluster.nameserver) as producer:
        producer.send_many([Message(topic, b"%d" % number) for number in range(count)])


def simple(cluster: LocalCluster, topic: str, **options: float) -> WorkQueueConsumer:
    consumer = WorkQueueConsumer(cluster.nameserver, group=topic, **{"invisible_s": 3600, **options})  # type: ignore[arg-type]
    consumer.subscribe(topic)
    return consumer


def others_get_nothing(cluster: LocalCluster, topic: str) -> bool:
    """Return true if a further consumer gets nothing though more than the grace has passed."""
    with simple(cluster, topic) as other:
        return other.receive(timeout=LONGER_S) == []


@pytest.mark.fault
def test_an_answer_that_is_late_takes_nothing_away(pair: LocalCluster, topic: str) -> None:
    fill(pair, topic, 1)
    broker = pair.brokers[0]
    with simple(pair, topic, request_timeout_s=1) as consumer:
        [message] = consumer.receive(1, timeout=TIMEOUT_S)
        broker.pause()
        try:
            with pytest.raises(DeadlineExceeded):
                consumer.extend(message)
            with pytest.raises(DeadlineExceeded):
                consumer.receive(1, timeout=0)
        finally:
            broker.resume()
        assert others_get_nothing(pair, topic)
        wait_until(lambda: acknowledged(consumer, message.handle), TIMEOUT_S)


def acknowledged(consumer: WorkQueueConsumer, handle: str) -> bool:
    try:
        consumer.ack(handle)
    except DeadlineExceeded:
        return False
    return True


@pytest.mark.fault
def test_a_rejection_is_raised_though_the_last_try_has_no_answer(
    pair: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(pair, topic, 1)
    broker = pair.brokers[0]
    real, busy, begun = PopStream.settle, SystemBusy("too much: wait", retry_after_s=0.3), []

    def reject_first(stream: PopStream, key: SettleKey, spans: Sequence[Span], answered: Answered) -> None:
        begun.append(time.monotonic())
        if len(begun) == 1:
            answered((), busy)
        else:
            real(stream, key, spans, answered)

    with simple(pair, topic, request_timeout_s=3) as consumer:
        [message] = consumer.receive(1, timeout=TIMEOUT_S)
        broker.pause()
        try:
            monkeypatch.setattr(PopStream, "settle", reject_first)
            with pytest.raises(SystemBusy, match=r"too much: wait; .* may be settled"):
                consumer.ack(message)
        finally:
            monkeypatch.undo()
            broker.resume()
        assert begun[1] - begun[0] >= busy.retry_after_s
        wait_until(lambda: acknowledged(consumer, message.handle), TIMEOUT_S)


def test_what_a_dead_consumer_had_taken_ahead_comes_back(pair: LocalCluster, topic: str) -> None:
    fill(pair, topic, 2_000)
    network = Cluster(pair.nameserver)
    dead = WorkQueueConsumer(network, group=topic, invisible_s=3600)
    dead.subscribe(topic)
    received = 0
    while not dead._reader._prefetch.count:
        messages = dead.receive(1, timeout=TIMEOUT_S)
        dead.ack(messages)
        received += len(messages)
    network.close()  # the brokers hear nothing of the consumer
    dead.close()
    with simple(pair, topic) as other:
        found: list[WorkQueueMessage] = []
        while len(found) < 2_000 - received:
            found += (messages := other.receive(timeout=TIMEOUT_S))
            other.ack(messages)  # what was lost with a consumer comes alone, so the next waits for it
    assert len({message.queue_offset for message in found}) == len(found)
    assert {message.delivery_count for message in found} == {1, 2}


@pytest.mark.parametrize("kind", ["push", "simple"])
def test_messages_that_come_as_their_consumer_closes_go_to_others_untried(
    pair: LocalCluster, topic: str, kind: str
) -> None:
    broker = pair.brokers[0].address
    with HandOutHold(broker) as relay, ThreadPoolExecutor(1) as pool:
        with consumer_of(kind, pair, topic) as consumer:
            consumer.subscribe(topic)
            lead(consumer, {broker: relay.address})
            begun = pool.submit(begin, consumer)
            fill(pair, topic, 1)
            wait_until(lambda: in_flight(pair, topic) == 1, TIMEOUT_S)
        if kind == "simple":
            with pytest.raises(Closed):
                begun.result(TIMEOUT_S)
    with simple(pair, topic) as other:
        assert [message.delivery_count for message in other.receive(1, timeout=TIMEOUT_S)] == [1]


def test_a_stream_ends_although_the_wait_for_its_end_is_cancelled(pair: LocalCluster, topic: str) -> None:
    with simple(pair, topic) as consumer, ThreadPoolExecutor(1) as pool:
        begun = pool.submit(consumer.receive, 1, timeout=TIMEOUT_S)
        streams = consumer._reader.settler._streams
        wait_until(lambda: any(stream._takes for stream in [*streams.values()]), TIMEOUT_S)
        (stream,) = streams.values()

        async def interrupt() -> None:
            closing = asyncio.ensure_future(stream.close(TIMEOUT_S))
            await asyncio.sleep(0)  # until it waits for the take
            closing.cancel()

        consumer._client.wait(interrupt)
        wait_until(lambda: stream.error is not None, TIMEOUT_S)
        consumer.close()
        with pytest.raises(Closed):
            begun.result(TIMEOUT_S)


def consumer_of(kind: str, cluster: LocalCluster, group: str) -> PushConsumer | WorkQueueConsumer:
    if kind == "simple":
        return WorkQueueConsumer(cluster.nameserver, group=group)
    return PushConsumer(cluster.nameserver, group=group, mode="work_queue", start="earliest")


def begin(consumer: PushConsumer | WorkQueueConsumer) -> None:
    """Begin to take messages, of which none comes here."""
    if isinstance(consumer, WorkQueueConsumer):
        assert consumer.receive(1, timeout=TIMEOUT_S) == []
    else:
        consumer.start(lambda _: ConsumeResult.RETRY_LATER)


def in_flight(cluster: LocalCluster, topic: str) -> int:
    with Admin(cluster.nameserver) as admin:
        try:
            return admin.describe_group(topic).in_flight
        except GroupNotFound:  # nobody has joined it yet
            return 0


def test_one_wrong_acknowledgement_among_thousands_fails_alone(pair: LocalCluster, topic: str) -> None:
    fill(pair, topic, 3_000)
    with simple(pair, topic) as consumer:
        messages = consumer.receive(3_000, timeout=TIMEOUT_S)
        assert len(messages) == 3_000
        wrong = str(messages[0].receipt._replace(offset=999_999))
        settle = consumer._reader.settler.settle

        async def settle_all() -> list[BaseException | None]:  # in one go
            acks = [settle(wrong, DONE), *(settle(message, DONE) for message in messages)]
            return await asyncio.gather(*acks, return_exceptions=True)

        errors = [error for error in consumer._client.wait(settle_all) if error is not None]
    assert [type(error) for error in errors] == [InvalidArgument], errors[:3]


def test_what_others_have_got_or_is_done_is_neither_rejected_nor_kept(pair: LocalCluster, topic: str) -> None:
    fill(pair, topic, 1)
    with simple(pair, topic) as consumer, simple(pair, topic) as other:
        [message] = consumer.receive(1, invisible_s=1, timeout=TIMEOUT_S)
        [again] = other.receive(1, timeout=TIMEOUT_S)
        with pytest.raises(HandleExpired):
            consumer.reject(message)
        other.ack(again)
        for late in (consumer.reject, consumer.extend):  # it is done
            with pytest.raises(HandleExpired):
                late(message)
        with pytest.raises(HandleExpired):
            other.reject(again)
        other.ack(again)
    with Admin(pair.nameserver) as admin, pytest.raises(TopicNotFound):
        admin.describe_topic(f"%DLQ%{topic}")


@pytest.mark.fault
def test_a_broker_that_hangs_holds_up_no_other(pair: LocalCluster, new_name: Callable[[], str]) -> None:
    topic = new_name()
    with Admin(pair.nameserver) as admin:
        admin.create_topic(topic, queues=1)
        [queue] = [queue for queue in admin.route(topic).read_queues() if queue.broker_name == "broker-b"]
    with Producer(pair.nameserver) as producer:
        producer.send_many([Message(topic, b"x")] * 100, queue=queue)
    with simple(pair, topic, request_timeout_s=3600) as consumer, ThreadPoolExecutor(1) as pool:
        for _ in range(2):  # so that both are known
            assert len(consumer.receive(10, timeout=TIMEOUT_S)) == 10
        pair.brokers[0].pause()
        try:
            for _ in range(4):  # whoever comes first
                assert len(pool.submit(consumer.receive, 10, timeout=1).result(TIMEOUT_S)) == 10
        finally:
            pair.brokers[0].resume()
