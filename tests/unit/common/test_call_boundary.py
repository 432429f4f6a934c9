"""Whatever a handler raises, its caller gets an error with a code. A real server of gRPC, with handlers that fail."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import DecodeError

from minimq_common import rpc
from minimq_common.call_boundary import CallBoundary
from minimq_common.errors import CorruptEntry, InternalError, InvalidArgument, MiniMQError, TopicNotFound
from support.loop_thread import LoopThread
from support.waiting import wait_until

PATIENCE_S = 30.0
KINDS = ["unary_unary", "unary_stream", "stream_unary", "stream_stream"]
RAISED: dict[bytes, Exception] = {
    b"unforeseen": KeyError("k"),
    b"known": TopicNotFound("no such topic"),
    b"library": ZeroDivisionError("of a library"),
}
EXPECTED: dict[bytes, tuple[type[MiniMQError], str]] = {
    b"unforeseen": (InternalError, "failed on the server: KeyError: 'k'"),
    b"known": (TopicNotFound, "no such topic"),
    b"library": (CorruptEntry, "translated"),
    b"garbled": (InvalidArgument, "is no message: wire format was corrupt"),
    b"aborted": (InternalError, "data_loss: ended before"),
}


async def fail(what: bytes, context: Any) -> bytes:  # noqa: ANN401 - of gRPC
    if what == b"aborted":
        await context.abort(grpc.StatusCode.DATA_LOSS, "ended before")
    if what in RAISED:
        raise RAISED[what]
    return what


async def first_of(requests: AsyncIterator[bytes]) -> bytes:
    return await anext(requests)


async def unary_unary(request: bytes, context: Any) -> bytes:  # noqa: ANN401 - of gRPC
    return await fail(request, context)


async def unary_stream(request: bytes, context: Any) -> AsyncIterator[bytes]:  # noqa: ANN401 - of gRPC
    yield await fail(request, context)


async def stream_unary(requests: AsyncIterator[bytes], context: Any) -> bytes:  # noqa: ANN401 - of gRPC
    return await fail(await first_of(requests), context)


async def stream_stream(requests: AsyncIterator[bytes], context: Any) -> None:  # noqa: ANN401 - of gRPC
    await context.write(await fail(await first_of(requests), context))


def decode(data: bytes) -> bytes:
    if data == b"garbled":
        raise DecodeError("wire format was corrupt")
    return data


class Large:
    """The request that a handler works on."""


HELD: list[weakref.ref[Large]] = []


async def holding(requests: AsyncIterator[bytes], context: Any) -> None:  # noqa: ANN401 - of gRPC
    large = Large()
    HELD.append(weakref.ref(large))
    await fail_with(await first_of(requests), large)


async def fail_with(what: bytes, large: Large) -> None:
    raise TopicNotFound(f"{what!r}: {large}")


class Handlers(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        kind = handler_call_details.method.rpartition("/")[2]
        if kind == "holding":
            return grpc.stream_stream_rpc_method_handler(holding, decode)
        if kind not in KINDS:
            return None
        return getattr(grpc, f"{kind}_rpc_method_handler")(globals()[kind], decode)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    def translate(error: Exception) -> MiniMQError | None:
        return CorruptEntry("translated") if isinstance(error, ZeroDivisionError) else None

    async def start() -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server(interceptors=[CallBoundary(translate)])
        server.add_generic_rpc_handlers((Handlers(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    loop = LoopThread()
    server, port = loop.run(start())
    with rpc.open_channel(f"127.0.0.1:{port}") as made:
        yield made
    loop.run(server.stop(0))
    loop.close()


def call(channel: grpc.Channel, kind: str, what: bytes, name: str = "") -> bytes:
    method = getattr(channel, kind)(f"/t.T/{name or kind}")
    request = iter([what]) if kind.startswith("stream") else what
    answer = method(request, timeout=PATIENCE_S)
    return answer if kind.endswith("unary") else next(answer)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", EXPECTED, ids=bytes.decode)
def test_a_handler_that_raises_ends_its_call_with_a_code(
    channel: grpc.Channel, caplog: pytest.LogCaptureFixture, kind: str, what: bytes
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(grpc.RpcError) as raised:
        call(channel, kind, what)
    error = rpc.from_rpc_error(raised.value, "server")
    kind_of_error, text = EXPECTED[what]
    assert type(error) is kind_of_error
    assert text in error.message
    records = [record for record in caplog.records if record.name == "minimq_common.call_boundary"]
    assert [record.exc_info is not None for record in records] == [True] * (what == b"unforeseen")


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_goes_well_is_left_alone(channel: grpc.Channel, kind: str) -> None:
    assert call(channel, kind, b"fine") == b"fine"


def test_a_call_that_does_not_exist_is_said_to_be_unknown_by_grpc_itself(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        call(channel, "unary_unary", b"", name="nothing")
    assert rpc.status_of(raised.value)[0] is grpc.StatusCode.UNIMPLEMENTED


def test_what_a_handler_had_in_hand_is_given_back_at_once(channel: grpc.Channel) -> None:
    call: Any = channel.stream_stream("/t.T/holding")
    gc.disable()
    try:
        for _ in range(3):
            with pytest.raises(grpc.RpcError):
                list(call(iter([b"x"]), timeout=PATIENCE_S))
        wait_until(lambda: [reference() for reference in HELD] == [None] * 3)
    finally:
        gc.enable()
        HELD.clear()
