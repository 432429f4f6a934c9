"""Several appends in one request: a client joins small ones that wait for the same write."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import grpc
import pytest

from minimq import LocalCluster, Message, MessageQueue, Producer
from minimq.sending.append_stream import AppendStream
from minimq_common.errors import InvalidArgument
from minimq_proto.v1 import broker_pb2
from support.kernel_stores import numbered_batch
from support.raw_sender import TIMEOUT_S, RawSender
from support.reading import read_all


def append(number: int, topic: str, batch: bytes) -> broker_pb2.Append:
    return broker_pb2.Append(request_id=number, topic=topic, batch=batch)


def answered(sender: RawSender, appends: Iterable[broker_pb2.Append]) -> dict[int, broker_pb2.AppendResult]:
    request = broker_pb2.AppendRequest(appends=appends)
    responses = list(sender.stub.Append(iter([request]), timeout=TIMEOUT_S))
    return {result.request_id: result for response in responses for result in response.results}


def test_each_of_them_is_stored_or_rejected_by_itself(cluster: LocalCluster, topic: str) -> None:
    appends = (
        append(1, topic, numbered_batch(77, 0, b"first")),
        append(2, f"no-{topic}", numbered_batch(77, 1, b"lost")),
        append(3, topic, b"no batch at all"),
        append(4, topic, numbered_batch(77, 3, b"last")),
    )
    with RawSender(cluster.brokers[0].address) as sender:
        results = answered(sender, appends)
    assert sorted(results) == [1, 2, 3, 4]
    assert {number for number, result in results.items() if result.HasField("failure")} == {2, 3}
    assert results[4].base_offset == results[1].base_offset + 1


@pytest.mark.parametrize("number", [0, 257])
def test_a_request_has_a_bounded_number_of_appends(cluster: LocalCluster, topic: str, number: int) -> None:
    appends = [append(1, topic, numbered_batch(77, 0, b"first"))] * number
    with RawSender(cluster.brokers[0].address) as sender, pytest.raises(grpc.RpcError, match="the limit is 256"):
        answered(sender, appends)


def test_only_a_request_over_a_limit_is_lost_and_those_behind_it_are_retried(
    cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add: Any = AppendStream.append
    sent, handed_in = list[bytes](), threading.Event()

    def broken(stream: AppendStream, queue: MessageQueue, data: bytes, *args: Any) -> None:
        assert handed_in.wait(TIMEOUT_S)
        sent.append(data)
        add(stream, queue, data, *args[:-1], 1 << 20 if b"too much" in data else 0)

    monkeypatch.setattr(AppendStream, "append", broken)
    bodies = [b"too much" if number == 50 else b"%d" % number for number in range(100)]
    with Producer(cluster.nameserver, batch_messages=1, max_in_flight_requests=64) as producer:
        sendings = [producer.send_async(Message(topic, body)) for body in bodies]
        handed_in.set()
        with pytest.raises(InvalidArgument, match=r"key_queues is 1048576"):
            sendings.pop(50).result(TIMEOUT_S)
        for sending in sendings:
            sending.result(TIMEOUT_S)
    assert len(sent) > len(bodies)
    assert sorted(message.body for message in read_all(cluster.nameserver, topic)) == sorted({*bodies} - {b"too much"})
