"""Stands between clients and a broker, and passes calls on; its kinds change or lose some of what goes by."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, Self

import grpc


class CallRelay(grpc.GenericRpcHandler):
    """A gRPC server that passes all calls on to a broker. A context manager.

    Attributes:
        address: HOST:PORT at which clients reach the broker through it.
    """

    def __init__(self, broker: str) -> None:
        self._channel = grpc.insecure_channel(broker)
        self._server = grpc.server(ThreadPoolExecutor(32), handlers=[self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self._server.stop(None).wait()

    def begins(self, method: str, request: bytes, context: grpc.ServicerContext) -> None:
        """Receive the first request of a call; `context.abort` keeps it from the broker."""

    def asked(self, method: str, request: bytes) -> None:
        """Hear of a request of a client, before the broker does."""

    def passed_on(self, method: str, answer: bytes) -> bytes | None:
        """Return what the client gets in place of an answer; None for nothing."""
        return answer

    def _heard(self, method: str, requests: Iterator[bytes]) -> Iterator[bytes]:
        for request in requests:
            self.asked(method, request)
            yield request

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        # Every call is a stream of bytes each way; some have one message only.
        method = handler_call_details.method
        pass_on: Any = self._channel.stream_stream(method)

        def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            first = next(requests, b"")
            self.begins(method, first, context)
            call: Any = pass_on(self._heard(method, chain((first,), requests)))
            context.add_callback(call.cancel)
            try:
                for answer in call:
                    changed = self.passed_on(method, answer)
                    if changed is not None:
                        yield changed
            except grpc.RpcError:
                context.set_trailing_metadata(call.trailing_metadata() or ())
                context.abort(call.code(), call.details() or "")

        return grpc.stream_stream_rpc_method_handler(serve)
