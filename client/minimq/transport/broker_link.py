"""Connections to brokers: one channel for each address, and calls whose errors are those of minimq."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import grpc

from minimq.transport.home_process import HomeProcess
from minimq_common.bound_check import check_answer
from minimq_common.errors import Closed
from minimq_common.rpc import from_rpc_error, open_channel
from minimq_common.security.certificates import Trust
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_proto.v1 import broker_pb2, broker_pb2_grpc

Request = TypeVar("Request")
Response = TypeVar("Response")


class BrokerLink:
    """The connection to one broker. Thread-safe.

    Attributes:
        address: HOST:PORT.
        stub: for streams; single calls go through `call`.
        trust: of its channel.
    """

    def __init__(self, address: str, trust: Trust | None = None) -> None:
        self.address = address
        self.trust = trust
        self._channel = open_channel(address, trust)
        self.stub = broker_pb2_grpc.BrokerStub(self._channel)
        #: As of the stub, but for requests that are encoded: each is given as its parts.
        self.append = self._channel.stream_stream(
            "/minimq.v1.Broker/Append", b"".join, broker_pb2.AppendResponse.FromString
        )

    def call(self, method: Callable[..., Response], request: Request, timeout_s: float) -> Response:
        """Return the answer to one call, for example `link.call(link.stub.GetStatus, request, 3.0)`.

        Raises:
            MiniMQError: what the broker refused with, or `Unavailable` or `DeadlineExceeded`.
            InternalError: it has answered what cannot be.
        """
        try:
            return check_answer(method(request, timeout=timeout_s), f"broker {self.address}")
        except grpc.RpcError as error:
            raise from_rpc_error(error, f"broker {self.address}") from None

    def close(self) -> None:
        """End the connection; calls under way fail."""
        self._channel.close()


class BrokerLinks:
    """Connections to brokers, made when first asked for. Thread-safe.

    Args:
        shared: has the connections, which several clients use; otherwise they are made and ended here.
        security: of the connections that are made here.
    """

    def __init__(self, shared: BrokerLinks | None = None, security: ChannelSecurity = PLAIN) -> None:
        self._shared = shared
        self._security = security
        #: Those of former certificates, whose streams go on.
        self._former: list[BrokerLink] = []
        self._process = HomeProcess("client")
        self._lock = threading.Lock()
        self._links: dict[str, BrokerLink] = {}
        self._closed = False

    def to(self, address: str) -> BrokerLink:
        """Return the connection to an address. Raises `Closed` after `close`, and in a fork."""
        self._process.check()
        with self._lock:
            if self._closed:
                raise Closed("the client is closed")
            if self._shared is not None:
                return self._shared.to(address)
            link, trust = self._links.get(address), self._security.trust()
            if link is not None and link.trust is not trust:
                self._former.append(link)
                link = None
            if link is None:
                link = self._links[address] = BrokerLink(address, trust)
            return link

    def close(self) -> None:
        """End all connections that were made here; in a fork, whose they are not, nothing. Idempotent."""
        if self._process.is_forked:
            return
        with self._lock:
            self._closed = True
            links = [*self._former, *self._links.values()]
            self._links.clear()
            self._former.clear()
        for link in links:
            link.close()
