"""Connections to brokers: one channel for each address, and calls whose errors are those of minimq."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import grpc

from minimq.transport.home_process import HomeProcess
from minimq_common.bound_check import check_answer
from minimq_common.errors import Closed
from minimq_common.rpc import from_rpc_error, open_channel, status_of
from minimq_proto.v1 import broker_pb2, broker_pb2_grpc

Request = TypeVar("Request")
Response = TypeVar("Response")

#: How long a broker that was not reached may take to answer before it is asked again, in seconds.
_QUESTION_S = 10.0


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
        #: Under way; gRPC drops what nobody holds.
        self._questions: set[grpc.Future[broker_pb2.GetStatusResponse]] = set()

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

    def begin(
        self, method: grpc.UnaryUnaryMultiCallable[Request, Response], request: Request, timeout_s: float
    ) -> Callable[[], Response]:
        """Begin a call, and return a function that waits for its answer; it raises what `call` does."""
        future = method.future(request, timeout=timeout_s)

        def answer() -> Response:
            try:
                return check_answer(future.result(), f"broker {self.address}")
            except grpc.RpcError as error:
                raise from_rpc_error(error, f"broker {self.address}") from None

        return answer

    def when_answering(self, callback: Callable[[], None], is_wanted: Callable[[], bool]) -> None:
        """Call back once the broker answers, however long that takes; never when the connection is closed before.

        Args:
            callback: runs in a thread of gRPC, and has to be quick.
            is_wanted: returns False when nobody waits any more.
        """

        def look(question: grpc.Future[broker_pb2.GetStatusResponse]) -> None:
            self._questions.discard(question)
            if question.cancelled() or not is_wanted():
                return
            error = question.exception()
            if isinstance(error, grpc.RpcError) and status_of(error)[0] is grpc.StatusCode.DEADLINE_EXCEEDED:
                self.when_answering(callback, is_wanted)
            else:
                callback()

        with suppress(ValueError):  # closed just now
            question = self.stub.GetStatus.future(
                broker_pb2.GetStatusRequest(), timeout=_QUESTION_S, wait_for_ready=True
            )
            self._questions.add(question)
            question.add_done_callback(look)

    def close(self) -> None:
        """End the connection; calls under way fail."""
        self._channel.close()


class BrokerLinks:
    """Connections to brokers, made when first asked for. Thread-safe.

    Args:
        shared: has the connections, which several clients use; otherwise they are made and ended here.
    """

    def __init__(self, shared: BrokerLinks | None = None) -> None:
        self._shared = shared
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
            link = self._links.get(address)
            if link is None:
                link = self._links[address] = BrokerLink(address)
            return link

    def when_answering(self, address: str, callback: Callable[[], None]) -> None:
        """Call back once a broker answers, unless these connections are closed before; see `BrokerLink`.

        Raises `Closed` as `to` does.
        """
        self.to(address).when_answering(callback, lambda: not self._closed)

    def close(self) -> None:
        """End all connections that were made here; in a fork, whose they are not, nothing. Idempotent."""
        if self._process.is_forked:
            return
        with self._lock:
            self._closed = True
            links = list(self._links.values())
            self._links.clear()
        for link in links:
            link.close()
