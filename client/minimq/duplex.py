"""A stream in both directions, on threads: requests from any thread, answers to a callback."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import grpc

from minimq_common.errors import MiniMQError, Unavailable
from minimq_common.rpc import from_rpc_error

Request = TypeVar("Request")
Response = TypeVar("Response")


class Duplex(Generic[Request, Response]):
    """One gRPC stream. Thread-safe.

    Args:
        method: the call of a stub.
        peer: who is called, for errors: "broker 127.0.0.1:10911".
        on_response: called for each answer, by the stream's own thread.
        on_end: called once, by that thread, when no further answer will come: with None after a clean end.
    """

    def __init__(
        self,
        method: Callable[..., Any],
        peer: str,
        on_response: Callable[[Response], None],
        on_end: Callable[[MiniMQError | None], None],
    ) -> None:
        self._peer = peer
        self._on_response = on_response
        self._on_end = on_end
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._call: Any = method(iter(self._requests.get, None))
        self._thread = threading.Thread(target=self._receive, name=f"minimq-stream-{peer}", daemon=True)
        self._thread.start()

    def send(self, request: Request) -> None:
        """Send a request, in the order of the calls. Does not wait; a stream that has ended drops it."""
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
        error: MiniMQError | None = None
        responses: Iterator[Response] = self._call
        try:
            for response in responses:
                self._on_response(response)
        except grpc.RpcError as failure:
            error = from_rpc_error(failure, self._peer)
        except ValueError:  # the channel was closed under the stream
            error = Unavailable(f"{self._peer}: the connection was closed")
        finally:
            self._requests.put(None)  # lets gRPC's own thread, which waits for requests, come to its end
            self._on_end(error)
