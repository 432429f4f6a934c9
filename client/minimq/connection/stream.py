"""Bidirectional streams to brokers: plain, and with request ids. On the event loop of a connection."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

import grpc.aio

from minimq.connection.broker_methods import BrokerMethods
from minimq.connection.connection import Connection
from minimq.connection.loop_thread import CLOSED
from minimq_common.errors import Closed, InternalError, MinimqError, NotAuthenticated, Unavailable
from minimq_common.wire.bound_check import check_answer
from minimq_common.wire.channels import TooManyStreams
from minimq_common.wire.rpc import from_rpc_error

Request = TypeVar("Request")
Response = TypeVar("Response")
Answer = TypeVar("Answer")

#: Picks the method of a stub.
StreamMethod = Callable[[BrokerMethods], "grpc.aio.StreamStreamMultiCallable[Request, Response]"]

log = logging.getLogger(__name__)


class Stream(Generic[Request, Response]):
    """One bidirectional gRPC stream."""

    def __init__(
        self,
        connection: Connection,
        address: str,
        method: StreamMethod[Request, Response],
        on_response: Callable[[Response], None],
        on_end: Callable[[MinimqError | None], None],
    ) -> None:
        self._connection = connection
        self.address = address
        self._method = method
        self._peer = f"broker {address}"
        self._on_response = on_response
        self._on_end = on_end
        self._requests: deque[Request | None] = deque()  # None: end of requests
        self._is_over = False
        #: Accepts requests; None before it begins, and after a write has failed.
        self._call: grpc.aio.StreamStreamCall[Request, Response] | None = None
        #: gRPC's coroutine of the last write, and the future that it awaits.
        self._writing: Coroutine[Any, Any, None] | None = None
        self._written: asyncio.Future[Any] | None = None
        #: Whether a write has ended. The first one also waits for the connection; each later one awaits one future.
        self._has_written = False
        #: Whether writes wait, although gRPC would take the next request.
        self._is_held = False
        self._running: asyncio.Task[MinimqError | None] | None = None
        connection.check_open()
        if not connection.call_soon(self._begin):
            raise Closed(CLOSED)

    def send(self, request: Request | None) -> None:
        """Send a request, in the order of the calls; an ended stream drops it. Thread-safe."""
        if self._connection.is_loop_thread:
            self.add(request)
        else:
            self._connection.call_soon(self.add, request)

    def finish(self) -> None:
        """Send `None`. Thread-safe."""
        self.send(None)

    def cancel(self) -> None:
        """Cancel the stream, without waiting for its end. Thread-safe."""
        self._connection.call_soon(self._cancel)

    async def wait_ended(self, timeout_s: float) -> bool:
        """Wait until the stream has ended, on the loop; False after the timeout."""
        if self._running is None:
            return self._is_over
        return bool((await asyncio.wait((self._running,), timeout=timeout_s))[0])

    # ---- on the event loop ----------------------------------------------------------------------

    def _begin(self) -> None:
        self._running = asyncio.create_task(self._run())
        self._running.add_done_callback(self._ended)  # called even if the task is cancelled before its first step

    def _cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    def add(self, request: Request | None) -> None:
        """Like `send`, on the loop only."""
        if self._is_over:
            return
        self._requests.append(request)
        if self._written is None or self._written.done():
            self._write()
        elif len(self._requests) == 1:
            self._written.add_done_callback(self._write)

    async def _run(self) -> MinimqError | None:
        try:
            with self._connection.broker_stub(self.address) as stub:
                return await self._read(stub)
        except TooManyStreams as error:
            return error
        finally:
            self._requests.clear()

    async def _read(self, stub: BrokerMethods) -> MinimqError | None:
        self._call = call = self._method(stub)()
        try:
            self._write()
            async for response in call:
                check_answer(response, self._peer)
                self._on_response(response)
                self._write()  # ends the last write, which holds its request in memory
        except grpc.aio.AioRpcError as failure:
            error = from_rpc_error(failure, self._peer)
            if isinstance(error, NotAuthenticated) and self._connection.has_new_key(self.address, stub):
                return Unavailable(
                    f"the credentials were replaced: {error.message}"
                )  # retriable: the next stream uses the new ones
            error.was_sent = self._has_written
            return error
        except InternalError as false_answer:
            return false_answer
        finally:
            if (written := self._written) is not None and not written.cancel() and not written.cancelled():
                written.exception()  # else asyncio logs it. A cancelled one gets no report after the end of the loop.
            self._call = self._writing = self._written = None
            call.cancel()
        return None

    def _write(self, _: object = None) -> None:
        """Write the queued requests, each as soon as gRPC has taken the one before.

        Drives gRPC's coroutines by hand: a task would cost an iteration of the loop per request. With no request
        waiting, the end of a write is handled only when a response or the next request comes.
        """
        written, requests = self._written, self._requests
        if written is not None:
            if not written.done():
                return
            if written.cancelled() or written.exception() is not None:
                self._call = None  # the call has ended, and its reader gets the reason
        while (call := self._call) is not None and (self._writing is not None or (requests and not self._is_held)):
            try:
                if self._writing is None:
                    self._writing = self._next_write(call)
                self._written = self._writing.send(None)
            except StopIteration:
                self._writing = self._written = None
                self._has_written = True
            except (asyncio.CancelledError, asyncio.InvalidStateError, grpc.RpcError):
                self._call = None
            else:
                if requests or not self._has_written:
                    self._written.add_done_callback(self._write)
                return

    def _next_write(self, call: grpc.aio.StreamStreamCall[Request, Response]) -> Coroutine[Any, Any, None]:
        request = self._requests.popleft()
        if request is None:
            return call.done_writing()
        return call.write(request)

    def _ended(self, running: asyncio.Task[MinimqError | None]) -> None:
        error: MinimqError | None
        if running.cancelled():
            error = Unavailable(f"{self._peer}: the stream was cancelled")
        elif (failure := running.exception()) is None:
            error = running.result()
        else:  # `on_response` raised: a bug of this client, but the receivers must get an error
            log.error("stream ended: processing an answer failed peer=%s", self._peer, exc_info=failure)
            error = Unavailable(f"{self._peer}: processing its answer failed: {failure!r}")
        self._running = None  # the task keeps the call alive, and so the channel
        self._is_over = True
        try:
            self._on_end(error)
        except Exception:
            log.exception("processing the end of a stream failed peer=%s", self._peer)


class Part(NamedTuple, Generic[Answer]):
    request_id: int
    answer: Answer
    #: False if further answers to this request follow.
    is_last: bool = True


class CorrelatedStream(Stream[Request, Response], Generic[Request, Response, Answer]):
    """A stream whose requests have ids: each answer goes to the receiver of its request, on the event loop.

    Any thread may send a request. If the stream ends meanwhile, the request fails exactly once: either `request` raises
    or its receiver is called.
    """

    def __init__(
        self,
        connection: Connection,
        address: str,
        method: StreamMethod[Request, Response],
        parts: Callable[[Response], Iterable[Part[Answer]]],
    ) -> None:
        self._parts = parts
        self._ids = itertools.count(1)
        self._receivers: dict[int, Callable[[Answer | None, MinimqError | None], object]] = {}
        #: Why the stream has ended; None while it is open.
        self.failure: MinimqError | None = None
        super().__init__(connection, address, method, self._respond, self._conclude)

    @property
    def ended(self) -> bool:
        """True if a new stream is needed."""
        return self.failure is not None

    def request(
        self, make: Callable[[int], Request], receiver: Callable[[Answer | None, MinimqError | None], object]
    ) -> int:
        """Send a request, and return its id. Raises `failure` if the stream has ended."""
        request_id = next(self._ids)
        self._receivers[request_id] = receiver
        if self.failure is not None and self._receivers.pop(request_id, None) is not None:
            raise self.failure
        self.send(make(request_id))
        return request_id

    def forget(self, request_id: int, farewell: Request) -> None:
        """Drop the receiver of a request; send `farewell` to the broker unless the last answer has arrived."""
        if self._receivers.pop(request_id, None) is not None:
            self.send(farewell)

    def fail(self, reason: MinimqError) -> None:
        """Cancel the stream, and call all receivers with `reason`, on this thread. Does not wait for the end."""
        self._conclude(reason)
        self.cancel()

    def close(self) -> None:
        """Cancel the stream without calling the receivers. Does not wait for the end."""
        self.failure = self.failure or Closed(CLOSED)
        self._receivers.clear()
        self.cancel()

    def _respond(self, response: Response) -> None:
        for request_id, answer, is_last in self._parts(response):
            find = self._receivers.pop if is_last else self._receivers.get
            receiver = find(request_id, None)
            if receiver is not None:
                receiver(answer, None)

    def _conclude(self, error: MinimqError | None) -> None:
        reason = error or Unavailable(f"{self._peer} ended the connection")
        self.failure = self.failure or reason
        for request_id in [*self._receivers]:
            receiver = self._receivers.pop(request_id, None)
            if receiver is not None:
                receiver(None, reason)
