"""The dispatcher of a server: codes of errors, limits on streams and requests. Real calls to a real server."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from minimq_common.errors import (
    CorruptEntry,
    InternalError,
    InvalidArgument,
    MessageTooLarge,
    MinimqError,
    SystemBusy,
    TopicNotFound,
)
from minimq_common.wire import rpc
from minimq_common.wire.dispatcher import MAX_REQUEST_BYTES, CallLimits, Dispatcher
from minimq_proto.v1 import broker_pb2, staged_pb2, work_queues_pb2
from support.loop_thread import LoopThread
from support.waiting import wait_until

TIMEOUT_S = 20.0
BROKER = broker_pb2.DESCRIPTOR.services_by_name["Broker"]
WORK_QUEUES = work_queues_pb2.DESCRIPTOR.services_by_name["WorkQueues"]
STAGED = staged_pb2.DESCRIPTOR.services_by_name["Staged"]
CALL, STREAM = "DescribeTopic", "Events"
KINDS = [CALL, STREAM]
RAISED: dict[str, Exception] = {
    "unforeseen": KeyError("k"),
    "known": TopicNotFound("no such topic"),
    "library": ZeroDivisionError("of a library"),
}
EXPECTED: dict[str, tuple[type[MinimqError], str]] = {
    "unforeseen": (InternalError, "failed on the server: KeyError: 'k'"),
    "known": (TopicNotFound, "no such topic"),
    "library": (CorruptEntry, "translated"),
    "garbled": (InvalidArgument, "cannot be decoded"),
    "aborted": (InternalError, "data_loss: ended before"),
    "x" * 1_000: (InvalidArgument, "1000"),
}


class Large:
    """The request that a handler works on."""


HELD: list[weakref.ref[Large]] = []


async def fail(what: str, context: Any) -> bytes:
    if what == "aborted":
        await context.abort(grpc.StatusCode.DATA_LOSS, "ended before")
    if what == "holding":
        large = Large()
        HELD.append(weakref.ref(large))
        raise TopicNotFound(f"{what}: {large}")
    if what in RAISED:
        raise RAISED[what]
    return what.encode()  # encoded already


async def describe(request: broker_pb2.DescribeTopicRequest, context: Any) -> bytes:
    return await fail(request.topic, context)


async def attend(requests: AsyncIterator[Any], context: Any) -> None:
    async for request in requests:
        await rpc.write(context, await fail(request.client_id, context))


async def echo(requests: AsyncIterator[Any], context: Any) -> None:
    async for request in requests:
        await rpc.write(context, request.SerializeToString())


@contextmanager
def serving(dispatcher: Dispatcher) -> Iterator[grpc.Channel]:
    async def start() -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server(options=rpc.SERVER_OPTIONS)
        server.add_generic_rpc_handlers((dispatcher,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    dispatcher.add(BROKER, {CALL: describe, "Append": echo})
    dispatcher.add(WORK_QUEUES, {"Pop": echo})
    dispatcher.add(STAGED, {STREAM: attend})
    loop = LoopThread()
    server, port = loop.run(start())
    with rpc.open_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    loop.run(server.stop(0))
    loop.close()
    del server
    gc.collect()  # Python warns of what was begun and never awaited


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    def translate(error: Exception) -> MinimqError | None:
        return CorruptEntry("translated") if isinstance(error, ZeroDivisionError) else None

    with serving(Dispatcher(translate=translate)) as channel:
        yield channel


def call(channel: grpc.Channel, method: str, what: str) -> bytes:
    made: broker_pb2.DescribeTopicRequest | staged_pb2.EventsRequest = broker_pb2.DescribeTopicRequest(topic=what)
    if method == STREAM:
        made = staged_pb2.EventsRequest(client_id=what)
    data = b"\x0a\xff" if what == "garbled" else made.SerializeToString()
    if method == STREAM:
        return next(stream(channel, iter([data]), STREAM))  # type: ignore[no-any-return]
    one: Any = channel.unary_unary(f"/minimq.v1.Broker/{method}")
    return one(data, timeout=TIMEOUT_S)  # type: ignore[no-any-return]


def stream(channel: grpc.Channel, requests: Iterator[bytes], method: str = "Append") -> Any:
    service = {STREAM: "Staged", "Pop": "WorkQueues"}.get(method, "Broker")
    made: Any = channel.stream_stream(f"/minimq.v1.{service}/{method}")
    return made(requests, timeout=TIMEOUT_S)


def append(batch: bytes) -> bytes:
    return broker_pb2.AppendRequest(appends=[broker_pb2.Append(topic="t", batch=batch)]).SerializeToString()


def pop(group: str) -> bytes:
    return work_queues_pb2.PopRequest(group=group).SerializeToString()


def failure(call: Any) -> MinimqError:
    with pytest.raises(grpc.RpcError) as raised:
        next(call)
    return rpc.from_rpc_error(raised.value, "server")


@pytest.mark.parametrize("method", KINDS)
@pytest.mark.parametrize("what", EXPECTED, ids=lambda what: what[:10])
def test_a_handler_that_raises_ends_its_call_with_a_code(
    channel: grpc.Channel, caplog: pytest.LogCaptureFixture, method: str, what: str
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(grpc.RpcError) as raised:
        call(channel, method, what)
    error = rpc.from_rpc_error(raised.value, "server")
    kind_of_error, text = EXPECTED[what]
    assert type(error) is kind_of_error
    assert text in error.message
    records = [record for record in caplog.records if record.name == "minimq_common.wire.dispatcher"]
    assert [record.exc_info is not None for record in records] == [True] * (what == "unforeseen")


def test_a_method_without_a_rule_is_served_by_no_server() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="unruled.proto", package="unruled")
    file.message_type.add(name="Request")
    service = file.service.add(name="Service")
    service.method.add(name="Call", input_type=".unruled.Request", output_type=".unruled.Request")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    with pytest.raises(RuntimeError, match=r"unruled.Service.Call does not say who may call it"):
        Dispatcher().add(pool.FindServiceByName("unruled.Service"), {"Call": describe})


def test_a_stream_on_which_nothing_is_said_is_ended() -> None:
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait()
        yield from ()

    def late() -> Iterator[bytes]:
        yield append(b"first")
        assert not over.wait(1.0)
        yield append(b"second")

    def begun(channel: grpc.Channel) -> Any:
        """Return a stream whose first request came in time, however busy this machine is."""
        while True:
            talking = stream(channel, late())
            with suppress(grpc.RpcError):
                assert next(talking) == append(b"first")
                return talking

    with serving(Dispatcher(CallLimits(first_request_s=0.5))) as channel:
        talking = begun(channel)
        error = failure(stream(channel, nothing()))
        assert next(talking) == append(b"second")  # once a stream has begun it may be silent
        over.set()
    assert isinstance(error, InvalidArgument)
    assert error.message == "ended the Append call: no request arrived within 0.5 s"


def test_a_call_whose_request_does_not_come_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minimq_common.wire.dispatcher.REQUEST_S", 0.2)
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait()
        yield from ()

    with serving(Dispatcher()) as channel:
        error = failure(stream(channel, nothing(), CALL))
        over.set()
    assert isinstance(error, InvalidArgument)
    assert error.message == f"ended the {CALL} call: no request arrived within 0.2 s"


def test_streams_of_one_kind_are_bounded() -> None:
    over = threading.Event()

    def held() -> Iterator[bytes]:
        yield append(b"x")
        over.wait()

    noted: Counter[str] = Counter()
    limits = CallLimits(max_streams=2)
    with serving(Dispatcher(limits, note=lambda method, _: noted.update([method]))) as channel:
        calls = [stream(channel, held()) for _ in range(2)]
        assert [next(call) for call in calls] == [append(b"x")] * 2
        error = failure(stream(channel, held()))
        assert isinstance(error, SystemBusy)
        assert error.message == ("2 Append streams are open, which is the limit of this server: close some")
        assert error.retry_after_s > 0
        assert noted == {"Append": 1}
        assert call(channel, STREAM, "fine") == b"fine"
        calls[0].cancel()

        def is_served() -> bool:
            try:
                return bool(next(stream(channel, held())))
            except grpc.RpcError:
                return False

        wait_until(is_served)
        over.set()


def test_only_streams_of_batches_take_large_requests() -> None:
    around = len(pop("x" * (MAX_REQUEST_BYTES - 16))) - (MAX_REQUEST_BYTES - 16)
    fits, large = (pop("x" * (MAX_REQUEST_BYTES - around + more)) for more in (0, 1))
    assert len(fits) == MAX_REQUEST_BYTES
    with serving(Dispatcher()) as channel:
        batch = append(bytes(MAX_REQUEST_BYTES))
        assert next(stream(channel, iter([batch]))) == batch
        assert next(stream(channel, iter([fits]), "Pop")) == fits
        sent = stream(channel, iter([pop("1"), large]), "Pop")
        assert next(sent) == pop("1")
        error = failure(sent)
    assert isinstance(error, MessageTooLarge)
    assert f"{len(large)} bytes is over the limit" in error.message
