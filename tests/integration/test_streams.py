"""Streams on the event loop of a connection, to real brokers."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from minimq import LocalCluster, Message, MessageQueue
from minimq.connection.connection import Connection
from minimq.sending.append_stream import AppendStream
from minimq_common.batch.builder import BatchBuilder
from minimq_common.errors import Closed, MinimqError, SystemBusy, Unavailable
from minimq_common.wire import channels, rpc
from minimq_proto.v1 import broker_pb2
from support.waiting import wait_until

#: Ids of producers, each of which sends one batch.
PRODUCERS = itertools.count(1 << 40)


@pytest.fixture
def connection(cluster: LocalCluster) -> Iterator[Connection]:
    with contextlib.closing(Connection([cluster.nameserver])) as opened:
        yield opened


def append(connection: Connection, stream: AppendStream, topic: str, body: bytes) -> Future[broker_pb2.AppendResult]:
    builder = BatchBuilder(1 << 20)
    builder.add([Message(topic, body)])
    data = builder.build(1, next(PRODUCERS), 0)
    answer: Future[broker_pb2.AppendResult] = Future()

    def receive(result: broker_pb2.AppendResult | None, error: MinimqError | None) -> None:
        if result is not None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def begin() -> None:
        try:
            stream.append(MessageQueue(topic, "broker-a", 0), data, receive)
        except MinimqError as error:
            answer.set_exception(error)

    connection.call_soon(begin)
    return answer


def test_each_answer_goes_to_its_request_whichever_thread_sent_it(
    connection: Connection, cluster: LocalCluster, topic: str
) -> None:
    stream = AppendStream(connection, cluster.brokers[0].address)
    answers: list[list[Future[broker_pb2.AppendResult]]] = [[], [], []]

    def send(mine: list[Future[broker_pb2.AppendResult]]) -> None:
        for number in range(100):
            mine.append(append(connection, stream, topic, b"%d" % number))
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
        append(connection, stream, topic, b"late").result(30)


@pytest.mark.fault
def test_what_is_under_way_fails_when_the_connection_closes(
    connection: Connection, cluster: LocalCluster, topic: str
) -> None:
    broker = cluster.brokers[0]
    stream = AppendStream(connection, broker.address)
    append(connection, stream, topic, b"1").result(30)
    broker.pause()
    try:
        left = append(connection, stream, topic, b"2")
        connection.close()
        assert isinstance(left.exception(30), Unavailable)
    finally:
        broker.resume()
    with pytest.raises(Closed):
        AppendStream(connection, broker.address)


def test_streams_beyond_the_limit_of_one_connection_use_further_ones(
    connection: Connection, cluster: LocalCluster, topic: str
) -> None:
    address = cluster.brokers[0].address
    count = dict(rpc.SERVER_OPTIONS)["grpc.max_concurrent_streams"] + 1
    streams = [AppendStream(connection, address) for _ in range(count)]
    answers = [append(connection, stream, topic, b"x") for stream in streams]
    assert sorted(answer.result(30).base_offset for answer in answers) == list(range(count))
    for stream in streams:
        stream.close()
    opened = [each for (to, _), each in connection._broker_channels._channels.items() if to == address]
    assert len(opened) == -(-count // channels.STREAMS_PER_CHANNEL)
    wait_until(lambda: not any(each.streams for each in opened))


def test_a_stream_beyond_the_limit_of_a_cluster_ends_with_an_error_that_names_it(
    connection: Connection, cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "MAX_STREAMS", channels.STREAMS_PER_CHANNEL)
    address = cluster.brokers[0].address
    streams = [AppendStream(connection, address) for _ in range(channels.STREAMS_PER_CHANNEL)]
    for stream in streams:
        append(connection, stream, topic, b"x").result(30)
    with pytest.raises(SystemBusy, match="use another Cluster"):
        append(connection, AppendStream(connection, address), topic, b"x").result(30)
    streams.pop().close()
    wait_until(lambda: connection._broker_channels._channels[address, 0].streams < channels.STREAMS_PER_CHANNEL)
    append(connection, AppendStream(connection, address), topic, b"x").result(30)


def allow(streams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow a number of streams to each server: a member of a group needs one for its session, and one for pulls."""
    monkeypatch.setattr(channels, "STREAMS_PER_CHANNEL", 1)
    monkeypatch.setattr(channels, "MAX_STREAMS", streams)
