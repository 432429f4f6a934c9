"""Connections to brokers: one channel for each address, and calls whose errors are those of minimq."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import grpc

from minimq_common.wire.bound_check import check_answer
from minimq_common.wire.rpc import from_rpc_error, open_channel
from minimq_proto.v1 import broker_pb2, broker_pb2_grpc

Request = TypeVar("Request")
Response = TypeVar("Response")
Stub = TypeVar("Stub")


class BrokerLink:
    """The connection to one broker. Thread-safe.

    Attributes:
        address: HOST:PORT.
        stub: for streams; single calls go through `call`.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = open_channel(address)
        self.stub = broker_pb2_grpc.BrokerStub(self._channel)
        #: As of the stub, but for requests that are encoded: each is given as its parts.
        self.append = self._channel.stream_stream(
            "/minimq.v1.Broker/Append", b"".join, broker_pb2.AppendResponse.FromString
        )

    def of(self, service: Callable[[grpc.Channel], Stub]) -> Stub:
        """Return the stub of a feature's service."""
        return service(self._channel)

    def call(self, method: Callable[..., Response], request: Request, timeout_s: float) -> Response:
        """Return the answer to one call, for example `link.call(link.stub.GetStatus, request, 3.0)`.

        Raises:
            MinimqError: what the broker rejected with, or `Unavailable` or `DeadlineExceeded`.
            InternalError: it has answered what cannot be.
        """
        try:
            return check_answer(method(request, timeout=timeout_s), f"broker {self.address}")
        except grpc.RpcError as error:
            raise from_rpc_error(error, f"broker {self.address}") from None

    def close(self) -> None:
        """End the connection; calls under way fail."""
        self._channel.close()
