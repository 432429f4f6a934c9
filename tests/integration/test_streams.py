"""Streams on the event loop of a connection, to real brokers."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from minimq import LocalCluster, Message, MessageQueue, Producer
from minimq.connection.connection import Connection
from minimq.connection.stream import Stream
from minimq.sending.append_stream import AppendStream
from minimq_common.batch_builder import BatchBuilder
from minimq_common.errors import Closed, MiniMQError, Unavailable
from minimq_proto.v1 import broker_pb2
from support.waiting import wait_until

#: Ids of producers, each of which sends one batch.
PRODUCERS = itertools.count(1 << 40)


@pytest.fixture
def connection(cluster: LocalCluster) -> Iterator[Connection]:
    with contextlib.closing(Connection([cluster.nameserver])) as opened:
        yield opened


def append(stream: AppendStream, topic: str, body: bytes) -> Future[broker_pb2.AppendResult]:
    builder = BatchBuilder(1 << 20)
    builder.add([Message(topic, body)])
    data = builder.build(1, next(PRODUCERS), 0)
    answer: Future[broker_pb2.AppendResult] = Future()

    def receive(result: broker_pb2.AppendResult | None, error: MiniMQError | None) -> None:
        if result is not None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    stream.append(MessageQueue(topic, "broker-a", 0), data, receive)
    return answer


def test_each_answer_goes_to_its_request_whichever_thread_sent_it(
    connection: Connection, cluster: LocalCluster, topic: str
) -> None:
    stream = AppendStream(connection, cluster.brokers[0].address)
    answers: list[list[Future[broker_pb2.AppendResult]]] = [[], [], []]

    def send(mine: list[Future[broker_pb2.AppendResult]]) -> None:
        for number in range(100):
            mine.append(append(stream, topic, b"%d" % number))
            if number % 10 == 0:
                mine[-1].result(30)  # so that the loop is found idle as well as busy

    threads = [threading.Thread(target=send, args=(mine,)) for mine in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    offsets = [[answer.result(30).base_offset for answer in mine] for mine in answers]
    assert all(mine == sorted(mine) for mine in offsets)
    assert sorted(offset for mine in offsets for offset in mine) == list(range(300))
    stream.close()
    assert stream.ended
    with pytest.raises(Closed):
        append(stream, topic, b"late")


@pytest.mark.fault
def test_what_is_under_way_fails_when_the_connection_closes(
    connection: Connection, cluster: LocalCluster, topic: str
) -> None:
    broker = cluster.brokers[0]
    stream = AppendStream(connection, broker.address)
    append(stream, topic, b"1").result(30)
    broker.pause()
    try:
        left = append(stream, topic, b"2")
        connection.close()
        assert isinstance(left.exception(30), Unavailable)
    finally:
        broker.resume()
    with pytest.raises(Closed):
        AppendStream(connection, broker.address)


def test_a_stream_tells_its_end_however_soon_its_loop_ends(cluster: LocalCluster) -> None:
    for _ in range(30):
        with contextlib.closing(Connection([cluster.nameserver])) as connection:
            told: Future[MiniMQError | None] = Future()
            stream = Stream(
                connection, cluster.brokers[0].address, lambda stub: stub.Session, lambda _: None, told.set_result
            )
        assert stream.join(30)
        assert isinstance(told.result(30), Unavailable)


def test_what_was_added_by_a_thread_that_was_interrupted_before_it_woke_the_loop_is_sent(
    cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        """Stands for the loop of a stream in a thread that Ctrl-C ends at the call."""

        def call_soon_threadsafe(self, *_: object) -> None:
            raise KeyboardInterrupt

    with Producer(cluster.nameserver, send_timeout_s=600) as producer:  # of which the first try may take 100 s
        sent = producer.send(Message(topic, b"first")).queue
        stream = current(producer)
        wait_until(lambda: stream._woken != stream._waits)  # the loop waits
        monkeypatch.setattr(Stream, "_is_free", False)  # or the thread would write by itself
        loop, stream._loop = stream._loop, Interrupted()  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            producer.send(Message(topic, b"second"), queue=sent)
        stream._loop = loop
        assert producer.statistics().buffered_messages == 1
        producer.flush(30)
        assert (producer.statistics().acknowledged, producer.statistics().retries) == (2, 0)


def test_what_a_thread_was_writing_when_it_was_interrupted_is_stored_once(cluster: LocalCluster, topic: str) -> None:
    class Interrupted:
        """Stands for the call of a stream in a thread that Ctrl-C ends in a write: after it has begun, or before."""

        def __init__(self, call: Any, *, begun: bool) -> None:  # noqa: ANN401 - of gRPC
            self._call, self._begun = call, begun

        def write(self, request: object) -> None:
            if self._begun:
                self._call.write(request).send(None)
            raise KeyboardInterrupt

    with Producer(cluster.nameserver) as producer:
        sent = producer.send(Message(topic, b"first")).queue
        for begun in (True, False):
            wait_until(lambda: current(producer)._is_free)
            stream = current(producer)
            stream._call = Interrupted(stream._call, begun=begun)  # type: ignore[assignment]
            with pytest.raises(KeyboardInterrupt):
                producer.send(Message(topic, b"interrupted"), queue=sent)
            assert stream.join(30)
            producer.flush(30)
            assert current(producer) is not stream
        assert producer.send(Message(topic, b"last"), queue=sent).queue_offset == 3


def current(producer: Producer) -> Stream[Any, Any]:
    """Return the stream of a producer that has one broker."""
    [stream] = [each._stream for each in producer._core._sender._streams._by_address.values()]
    return stream
