"""Real servers reject every request that breaks a bound, and continue to serve its sender."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor

from minimq import LocalCluster
from minimq_common.errors import InvalidArgument, MessageTooLarge, MinimqError
from minimq_common.wire.dispatcher import MAX_REQUEST_BYTES
from minimq_common.wire.rpc import from_failure, from_rpc_error, open_channel
from minimq_proto.v1 import broker_pb2
from support.bounds import Breach, breaches
from support.cases import for_each
from support.protocol import METHODS, SERVICES, call_of, is_of_nameserver

TIMEOUT_S = 30.0
#: Name servers read these a part at a time, and name the first reason that they find.
IN_PARTS = ("Register", "WatchRoutes")


@pytest.fixture(scope="module")
def replicated() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, slaves=1) as cluster:
        yield cluster


@pytest.fixture
def channels(replicated: LocalCluster) -> Iterator[dict[str, grpc.Channel]]:
    addresses = replicated.brokers[0].address, replicated.nameserver
    with closing(open_channel(addresses[0])) as broker, closing(open_channel(addresses[1])) as nameserver:
        yield {each.name: nameserver if is_of_nameserver(each) else broker for each in SERVICES}


@for_each("method", METHODS)
def test_what_breaks_a_bound_is_rejected(channels: dict[str, grpc.Channel], method: MethodDescriptor) -> None:
    call = call_of(channels[method.containing_service.name], method)
    for breach in breaches(method.input_type):
        rejected = _rejection(call, method.name, breach)
        assert isinstance(rejected, InvalidArgument), f"{breach.path}: {rejected!r}"
        if method.name not in IN_PARTS:
            assert "limit is" in rejected.message or "is a number from" in rejected.message, breach.path
        assert len(rejected.message) < 300, breach.path


def _rejection(call: Any, name: str, breach: Breach) -> MinimqError | None:
    """Return how a request is rejected, as each call says it."""
    try:
        match name:
            case "Append" | "AppendAtomic":
                answer = next(call(iter([breach.message]), timeout=TIMEOUT_S))  # then the stream of appends ends
                return from_failure(answer.results[0].failure)
            case "Pull":
                [frame] = call(iter([breach.message]), timeout=TIMEOUT_S)
                return from_failure(frame.failure)
            case "Pop":
                [response] = call(iter([breach.message]), timeout=TIMEOUT_S)
                return from_failure(response.results[0].failure)
            case "Session":
                return _rejected_in_session(call, breach)
            case "Register" | "WatchRoutes" | "Replicate" | "Snapshot" | "Events":
                answers = list(call(iter([breach.message]), timeout=TIMEOUT_S))
                assert not answers, answers
            case _:
                call(breach.message, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        return from_rpc_error(error, "server")
    return None


def _rejected_in_session(call: Any, breach: Breach) -> MinimqError | None:
    """Return how a session rejects a request; a client that names itself is served on."""
    if breach.message.client_id:
        assert not list(call(iter([breach.message]), timeout=TIMEOUT_S))
        return None
    requests: queue.SimpleQueue[broker_pb2.SessionRequest | None] = queue.SimpleQueue()
    events = call(iter(requests.get, None), timeout=TIMEOUT_S)
    requests.put(broker_pb2.SessionRequest(client_id="one", heartbeat=broker_pb2.Heartbeat(number=1)))
    requests.put(breach.message)
    requests.put(broker_pb2.SessionRequest(heartbeat=broker_pb2.Heartbeat(number=2)))
    before, told, after = next(events), next(events), next(events)
    assert (before.heartbeat.number, after.heartbeat.number) == (1, 2)
    requests.put(None)
    assert not list(events)
    assert len(told.rejected.group) <= 120
    return from_failure(told.rejected.failure)


@for_each(
    ("method", "most", "is_stream"),
    [
        ("Broker/Session", MAX_REQUEST_BYTES, True),
        ("Broker/Pull", MAX_REQUEST_BYTES, True),
        ("WorkQueues/Pop", MAX_REQUEST_BYTES, True),
        ("Replication/Replicate", MAX_REQUEST_BYTES, True),
        ("Broker/CommitOffsets", MAX_REQUEST_BYTES, False),
        ("Staged/CommitTransaction", 4 << 20, False),
    ],
)
def test_a_request_that_is_too_large_is_not_even_opened(
    channels: dict[str, grpc.Channel], method: str, most: int, *, is_stream: bool
) -> None:
    channel, name = channels[method.partition("/")[0]], f"/minimq.v1.{method}"

    def ask(request: bytes) -> None:
        if is_stream:
            stream: Any = channel.stream_stream(name)
            list(stream(iter([request]), timeout=TIMEOUT_S))
        else:
            call: Any = channel.unary_unary(name)
            call(request, timeout=TIMEOUT_S)

    for size, kind in ((most, InvalidArgument), (most + 1, MessageTooLarge)):
        with pytest.raises(grpc.RpcError) as raised:
            ask(b"\xff" * size)  # no message
        assert type(from_rpc_error(raised.value, "broker")) is kind
