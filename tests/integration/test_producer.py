"""The faces of sending beside `send` and `send_many`, with real servers."""

from __future__ import annotations

import threading
from collections import Counter
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
from minimq.connection import broker_troubles
from minimq_common.errors import InvalidArgument, SendFailed
from support.reading import read_all
from support.waiting import wait_until

TIMEOUT_S = 30.0


class Recorder(SendInterceptor):
    """Notes all that passes, and marks each message."""

    def __init__(self, mark: bytes = b"!") -> None:
        self._mark = mark
        self.lock = threading.Lock()
        self.before: list[bytes] = []
        self.after: list[tuple[bytes, SendReceipt | None, MinimqError | None]] = []

    def before_send(self, message: Message) -> Message:
        with self.lock:
            self.before.append(message.body)
        return Message(message.topic, message.body + self._mark)

    def after_send(self, message: Message, receipt: SendReceipt | None, error: MinimqError | None) -> None:
        with self.lock:
            self.after.append((message.body, receipt, error))


# ---- one way, statuses, statistics --------------------------------------------------------------


def test_statistics_count_messages_batches_bytes_and_latencies(cluster: LocalCluster, topic: str) -> None:
    with Producer(cluster.nameserver, batch_messages=100) as producer:
        producer.send_many(Message(topic, bytes(50)) for _ in range(1_000))
        producer.send(Message(topic, b"x"))
        told = producer.statistics()
        assert (told.acknowledged, told.failed, told.retries, told.already_stored) == (1_001, 0, 0, 0)
        assert told.batches >= 11
        assert 1_000 * 50 < told.bytes < 1_000 * 80
        assert told.latency.count == 1_001
        assert 0 < told.latency.quantile_s(0.5) <= told.latency.quantile_s(0.99) < TIMEOUT_S
        assert (told.buffered_messages, told.buffered_bytes, told.avoided) == (0, 0, ())


@pytest.mark.fault
def test_statistics_count_what_failed_and_name_the_brokers_that_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that it is a probe that finds it.
    monkeypatch.setattr(broker_troubles, "ISOLATION_S", 3_600.0)
    with LocalCluster(brokers=1, data_dir=tmp_path) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=1)
        with Producer(cluster.nameserver, send_timeout_s=5.0) as producer:
            producer.send(Message("t", b"0"))
            cluster.brokers[0].kill()
            with pytest.raises(SendFailed):
                producer.send(Message("t", b"1"))
            told = producer.statistics()
            assert (told.acknowledged, told.failed) == (1, 1)
            assert told.retries >= 1
            [avoided] = told.avoided
            assert (avoided.broker_name, avoided.unreachable) == ("broker-a", True)
            cluster.brokers[0].start()
            wait_until(lambda: not producer.statistics().avoided, TIMEOUT_S)
            producer.send(Message("t", b"2"))


# ---- interceptors -------------------------------------------------------------------------------


def test_interceptors_see_and_change_each_message_and_hear_of_its_outcome(cluster: LocalCluster, topic: str) -> None:
    outer, inner = Recorder(b"o"), Recorder(b"i")
    with Producer(cluster.nameserver, interceptors=[outer, inner]) as producer:
        producer.send(Message(topic, b"single"))
        producer.send_one_way(Message(topic, b"one-way"))
        producer.flush(TIMEOUT_S)
        receipts = producer.send_many([Message(topic, b"many"), Message(topic, b"more")])
    assert outer.before == [b"single", b"one-way", b"many", b"more"]
    assert inner.before == [b"singleo", b"one-wayo", b"manyo", b"moreo"]
    told = {body: receipt for body, receipt, error in outer.after if error is None}
    assert told.keys() == {b"singleoi", b"one-wayoi", b"manyoi", b"moreoi"}
    assert told[b"manyoi"] == receipts[0]
    assert told[b"moreoi"] == receipts[1]
    assert {message.body for message in read_all(cluster.nameserver, topic)} == told.keys()


def test_an_interceptor_that_raises_before_a_send_stops_it(cluster: LocalCluster, topic: str) -> None:
    class Rejects(SendInterceptor):
        def before_send(self, message: Message) -> Message:
            raise PermissionError("not this one")

    with Producer(cluster.nameserver, interceptors=[Rejects()]) as producer:
        with pytest.raises(PermissionError, match="not this one"):
            producer.send(Message(topic, b"x"))
        with pytest.raises(PermissionError, match="not this one"):
            producer.send_many([Message(topic, b"x")])
        assert producer.statistics().acknowledged == 0


# ---- selection ----------------------------------------------------------------------------------


def test_a_queue_of_another_topic_is_rejected(cluster: LocalCluster, topic: str) -> None:
    with Producer(cluster.nameserver) as producer, pytest.raises(InvalidArgument, match="of another topic"):
        producer.send(Message(topic, b"x"), queue=MessageQueue("other", "broker-a", 0))


def test_a_queue_and_a_selector_at_once_are_rejected(cluster: LocalCluster, topic: str) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    with Producer(cluster.nameserver) as producer:
        for send in (producer.send, producer.send_async, lambda message, **to: producer.send_many([message], **to)):
            with pytest.raises(InvalidArgument, match="either queue or selector"):
                send(Message(topic, b"x"), queue=queue, selector=by_hash())


@pytest.mark.fault
def test_a_key_keeps_its_queue_while_the_broker_is_offline(tmp_path: Path) -> None:
    with LocalCluster(brokers=2, data_dir=tmp_path) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=4)
        with Producer(cluster.nameserver, send_timeout_s=5.0) as producer:
            keys = [f"key-{number}" for number in range(40)]
            queues = {key: producer.send(Message("t", b"1", keys=[key]), selector=by_hash()).queue for key in keys}
            assert Counter(queue.broker_name for queue in queues.values()).keys() == {"broker-a", "broker-b"}
            cluster.brokers[1].kill()
            outcomes = {key: producer.send_async(Message("t", b"2", keys=[key]), selector=by_hash()) for key in keys}
            for key, future in outcomes.items():
                if queues[key].broker_name == "broker-a":
                    assert future.result(TIMEOUT_S).queue == queues[key]
                else:
                    assert isinstance(future.exception(TIMEOUT_S), SendFailed)
            cluster.brokers[1].start()
            offline = next(key for key in keys if queues[key].broker_name == "broker-b")
            wait_until(lambda: _stored(producer, offline, queues[offline]), TIMEOUT_S)
            for key in keys:
                assert producer.send(Message("t", b"3", keys=[key]), selector=by_hash()).queue == queues[key]


def _stored(producer: Producer, key: str, queue: MessageQueue) -> bool:
    try:
        return producer.send(Message("t", b"3", keys=[key]), selector=by_hash()).queue == queue
    except SendFailed:
        return False


# ---- topics made by themselves -------------------------------------------------------------------


def test_a_topic_is_made_on_all_brokers_by_the_first_send_where_they_allow_it(tmp_path: Path) -> None:
    with (
        LocalCluster(brokers=2, data_dir=tmp_path, broker_options={"auto_create_queues": 3}) as made,
        Producer(made.nameserver) as producer,
    ):
        receipts = producer.send_many(
            (Message("orders", b"%d" % number) for number in range(600)), selector=by_hash("k")
        )
        assert len({receipt.queue for receipt in receipts}) == 1
        queues: Counter[MessageQueue] = Counter()

        def is_sent_to_all() -> bool:  # three on each broker, in turn, unless a busy one is avoided for a while
            queues[producer.send(Message("audit", b"x")).queue] += 1
            return len(queues) == 6

        wait_until(is_sent_to_all, TIMEOUT_S)
        assert {queue.broker_name for queue in queues} == {"broker-a", "broker-b"}
        with Admin(made.nameserver) as admin:
            admin.delete_topic("audit")
        with pytest.raises(MinimqError, match="does not exist"):
            producer.send(Message("audit", b"gone"))
        with pytest.raises(MinimqError, match="was deleted"):
            producer.send(Message("audit", b"gone"))
        with Producer(made.nameserver) as another:
            assert another.send(Message("audit", b"made again")).queue_offset == 0


# ---- what is rejected at once --------------------------------------------------------------------


@pytest.mark.parametrize(("error", "waits_s"), [(KeyboardInterrupt, 2.0), (ValueError, 30.0)])
def test_the_end_of_a_with_block_that_ctrl_c_has_left_waits_only_briefly(
    cluster: LocalCluster, error: type[BaseException], waits_s: float
) -> None:
    waited: list[float | None] = []

    class Watched(Producer):
        def close(self, timeout: float = 30.0) -> None:
            waited.append(timeout)
            super().close(timeout)

    with pytest.raises(error), Watched(cluster.nameserver):
        raise error
    assert waited == [waits_s]
