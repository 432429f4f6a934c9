"""A stream in both directions, on threads: requests from any thread, answers to a callback."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

import grpc

from minimq_common.errors import InternalError, MinimqError, Unavailable
from minimq_common.wire.bound_check import check_answer
from minimq_common.wire.rpc import from_rpc_error

Request = TypeVar("Request")
Response = TypeVar("Response")

log = logging.getLogger(__name__)


class Duplex(Generic[Request, Response]):
    """One gRPC stream. Thread-safe.

    Args:
        method: the call of a stub.
        peer: who is called, for errors: "broker 127.0.0.1:10911".
        on_response: called for each answer, by the stream's own thread; what it raises ends the stream.
        on_end: called once, by that thread, when no further answer will come: with None after a clean end.
    """

    def __init__(
        self,
        method: Callable[..., Any],
        peer: str,
        on_response: Callable[[Response], None],
        on_end: Callable[[MinimqError | None], None],
    ) -> None:
        self._peer = peer
        self._on_response = on_response
        self._on_end = on_end
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._ended = False
        self._call: Any = method(iter(self._requests.get, None))
        self._thread = threading.Thread(target=self._receive, name=f"minimq-stream-{peer}", daemon=True)
        self._thread.start()

    def send(self, request: Request) -> None:
        """Send a request, in the order of the calls. Does not wait; a stream that has ended drops it."""
        if not self._ended:
            self._requests.put(request)

    def finish(self) -> None:
        """Say that no further request will come; the server ends the stream when all is answered."""
        self._requests.put(None)

    def cancel(self) -> None:
        """End the stream at once."""
        self._call.cancel()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the stream. Returns whether it came; the stream's own thread does not wait."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _receive(self) -> None:
        try:
            error = self._read()
        except Exception as failure:  # of the callback: an error of this process, but those who wait must hear of it
            log.exception("stream ended: an answer was not taken in peer=%s", self._peer)
            error = Unavailable(f"{self._peer}: its answer was not taken in: {failure!r}")
            self._call.cancel()
        self._let_go()
        try:
            self._on_end(error)
        except Exception:
            log.exception("the end of a stream was not taken in peer=%s", self._peer)

    def _read(self) -> MinimqError | None:
        """Hand out all answers; return why there are no more."""
        responses: Iterator[Response] = self._call
        while True:
            try:
                response = next(responses)
            except StopIteration:
                return None
            except grpc.RpcError as failure:
                return from_rpc_error(failure, self._peer)
            except ValueError:  # the channel was closed under the stream
                return Unavailable(f"{self._peer}: the connection was closed")
            try:
                check_answer(response, self._peer)
            except InternalError as error:
                self._call.cancel()
                return error
            self._on_response(response)

    def _let_go(self) -> None:
        """Drop the requests that were not sent, and let gRPC's own thread, which waits for them, come to its end."""
        self._ended = True
        with suppress(queue.Empty):
            while True:
                self._requests.get_nowait()
        self._requests.put(None)
