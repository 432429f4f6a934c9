"""Stands between clients and a broker, and loses what a test wants to be lost of what the broker tells in sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc

from minimq_proto.v1 import broker_pb2


class SessionFilter(grpc.GenericRpcHandler):
    """A gRPC server that passes all calls on to a broker. A context manager.

    Attributes:
        address: HOST:PORT at which clients reach the broker through it.
        loses: tells of each event whether it is to be lost.
    """

    def __init__(self, broker: str) -> None:
        self.loses: Callable[[broker_pb2.SessionEvent], bool] = lambda _: False
        self._channel = grpc.insecure_channel(broker)
        self._server = grpc.server(ThreadPoolExecutor(32), handlers=[self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self._server.stop(None).wait()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        # Every call is a stream of bytes each way; some have one message only.
        method = handler_call_details.method
        pass_on: Any = self._channel.stream_stream(method)
        filtered = method.endswith("/Session")

        def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            call: Any = pass_on(requests)
            context.add_callback(call.cancel)
            try:
                for data in call:
                    if not (filtered and self.loses(broker_pb2.SessionEvent.FromString(data))):
                        yield data
            except grpc.RpcError:
                context.set_trailing_metadata(call.trailing_metadata() or ())
                context.abort(call.code(), call.details() or "")

        return grpc.stream_stream_rpc_method_handler(serve)
