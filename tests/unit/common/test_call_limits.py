"""Limits on the number and the first request of a server's streams: real calls to a real server."""

from __future__ import annotations

import gc
import math
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from minimq_common import rpc
from minimq_common.call_boundary import CallBoundary
from minimq_common.call_limits import MAX_STREAM_REQUEST_BYTES, CallLimits, RequestLimits
from minimq_common.errors import InvalidArgument, MessageTooLarge, MiniMQError, SystemBusy
from support.loop_thread import LoopThread
from support.waiting import wait_until

PATIENCE_S = 20.0


async def echo(requests: AsyncIterator[bytes], context: Any) -> None:  # noqa: ANN401 - of gRPC
    async for request in requests:
        await rpc.write(context, request)


class Handlers(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.stream_stream_rpc_method_handler(echo)


@contextmanager
def serving(limits: CallLimits) -> Iterator[grpc.Channel]:
    async def start() -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server(interceptors=[limits, CallBoundary()], options=rpc.SERVER_OPTIONS)
        server.add_generic_rpc_handlers((Handlers(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    loop = LoopThread()
    server, port = loop.run(start())
    with rpc.open_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    loop.run(server.stop(0))
    loop.close()
    del server
    gc.collect()  # Python warns of what was begun and never awaited


def stream(channel: grpc.Channel, requests: Iterator[bytes], method: str = "Echo") -> Any:  # noqa: ANN401 - of gRPC
    call: Any = channel.stream_stream(f"/t.T/{method}")
    return call(requests, timeout=PATIENCE_S)


def failure(call: Any) -> MiniMQError:  # noqa: ANN401 - of gRPC
    with pytest.raises(grpc.RpcError) as raised:
        next(call)
    return rpc.from_rpc_error(raised.value, "server")


def test_a_stream_on_which_nothing_is_said_is_ended() -> None:
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait()
        yield from ()

    def late() -> Iterator[bytes]:
        yield b"first"
        assert not over.wait(1.0)
        yield b"second"

    with serving(CallLimits(first_request_s=0.5)) as channel:
        silent, talking = stream(channel, nothing()), stream(channel, late())
        assert next(talking) == b"first"
        error = failure(silent)
        assert next(talking) == b"second"  # once a stream has begun it may be silent
        over.set()
    assert isinstance(error, InvalidArgument)
    assert error.message == "the Echo stream is ended: no request came within 0.5 s of its begin"


def test_streams_of_one_kind_are_bounded() -> None:
    over = threading.Event()

    def held() -> Iterator[bytes]:
        yield b"x"
        over.wait()

    refused: Counter[str] = Counter()
    limits = CallLimits(2, "--max-streams", refused=lambda method, _: refused.update([method]))
    with serving(limits) as channel:
        calls = [stream(channel, held()) for _ in range(2)]
        assert [next(call) for call in calls] == [b"x"] * 2
        error = failure(stream(channel, held()))
        assert isinstance(error, SystemBusy)
        assert error.message == (
            "2 Echo streams are open, which is the limit of this server: close some, or start it with a larger "
            "--max-streams"
        )
        assert error.retry_after_s > 0
        assert refused == {"echo": 1}
        assert next(stream(channel, held(), "Other")) == b"x"
        calls[0].cancel()

        def is_served() -> bool:
            try:
                return bool(next(stream(channel, held())))
            except grpc.RpcError:
                return False

        wait_until(is_served)
        over.set()


def test_only_streams_of_batches_take_large_requests() -> None:
    large = bytes(MAX_STREAM_REQUEST_BYTES + 1)
    with serving(CallLimits(requests=RequestLimits(largest={"Append": math.inf}))) as channel:
        assert next(stream(channel, iter([large]), "Append")) == large
        assert next(stream(channel, iter([large[:-1]]))) == large[:-1]
        call = stream(channel, iter([b"1", large]))
        assert next(call) == b"1"
        error = failure(call)
    assert isinstance(error, MessageTooLarge)
    assert f"{len(large)} bytes is over the limit" in error.message


def test_a_refused_call_leaves_nothing_behind_for_a_full_collection() -> None:
    def kept() -> int:
        return sum(type(each) is grpc.aio.AbortError for each in gc.get_objects())

    with serving(CallLimits(max_streams=0)) as channel:
        gc.collect()
        gc.disable()
        try:
            for _ in range(30):
                assert isinstance(failure(stream(channel, iter(()))), SystemBusy)
            wait_until(lambda: kept() < 10)  # gRPC keeps the latest ones
        finally:
            gc.enable()
