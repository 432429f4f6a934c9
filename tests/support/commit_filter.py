"""Stands between a writer and a broker, which seems to take its time to publish a transaction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc

from minimq_proto.v1 import broker_pb2

#: What a commit takes that runs out of time, in seconds.
_CALL_S = 0.1


class CommitFilter(grpc.GenericRpcHandler):
    """A gRPC server that passes calls on to a broker, once it has told how much is left. A context manager.

    Attributes:
        address: HOST:PORT at which clients reach the broker through it.
        left: bytes that are left to publish, as whoever asks after a commit is told one after the other. Until then
            commits run out of time, and do not get to the broker.
    """

    def __init__(self, broker: str) -> None:
        self.left: list[int] = []
        self._held = False
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

        def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            if method.endswith("/CommitTransaction") and self.left:
                self._held = True
                time.sleep(_CALL_S)
                context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "as if the time was up")
            call: Any = pass_on(requests)
            context.add_callback(call.cancel)
            try:
                for data in call:
                    if method.endswith("/DescribeTransaction") and self._held and self.left:
                        answer = broker_pb2.DescribeTransactionResponse.FromString(data)
                        answer.staged_bytes = self.left.pop(0)
                        yield answer.SerializeToString()
                    else:
                        yield data
            except grpc.RpcError:
                context.set_trailing_metadata(call.trailing_metadata() or ())
                context.abort(call.code(), call.details() or "")

        return grpc.stream_stream_rpc_method_handler(serve)
