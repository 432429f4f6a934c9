"""Streams to brokers on the event loop of a connection: plain, and with an id for each request."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import grpc.aio

from minimq.connection.connection import Connection
from minimq.connection.loop_thread import CLOSED
from minimq.transport.client_log import client_logger
from minimq_common.bound_check import check_answer
from minimq_common.errors import Closed, InternalError, MiniMQError, NotAuthenticated, Unavailable
from minimq_common.rpc import from_rpc_error

if TYPE_CHECKING:  # at run time it is the plain stub
    from minimq_proto.v1.broker_pb2_grpc import BrokerAsyncStub

Request = TypeVar("Request")
Response = TypeVar("Response")
Answer = TypeVar("Answer")

#: Picks the method of a stub.
StreamMethod = Callable[["BrokerAsyncStub"], "grpc.aio.StreamStreamMultiCallable[Request, Response]"]

log = client_logger(__name__)


class Stream(Generic[Request, Response]):
    """One gRPC stream in both directions. Thread-safe; nothing here waits for the broker but `join`.

    A thread that sends a request while nothing is under way writes it itself: the loop would have to be woken for that.
    What comes behind is written by the loop, which is woken only while it waits: a burst costs one system call.
    """

    def __init__(
        self,
        connection: Connection,
        address: str,
        method: StreamMethod[Request, Response],
        on_response: Callable[[Response], None],
        on_end: Callable[[MiniMQError | None], None],
        join: Callable[[Request, deque[Request | None]], Request] | None = None,
    ) -> None:
        self._connection = connection
        self._address = address
        self._method = method
        self._peer = f"broker {address}"
        self._on_response = on_response
        self._on_end = on_end
        self._join = join
        self._requests: deque[Request | None] = deque()  # None: no further one will come
        #: How often the loop has begun to wait for requests, and for which of these times it was woken. No flag that
        #: both sides change: Ctrl-C may come between any two steps of who sends, and must not leave the loop asleep.
        self._waits = self._woken = 0
        self._loop: asyncio.AbstractEventLoop | None = None  # once it has begun
        self._ident = 0  # of its thread
        #: Protects what follows: the call, the write under way, the future for which that waits, and whether the loop
        #: watches for its end.
        self._turn = threading.Lock()
        self._call: grpc.aio.StreamStreamCall[Request, Response] | None = None
        self._writing: Coroutine[asyncio.Future[object], None, None] | None = None
        self._step: asyncio.Future[object] | None = None
        self._is_watched = False
        self._over = threading.Event()
        self._running: asyncio.Task[MiniMQError | None] | None = None  # of the loop
        connection.check_open()
        if not connection.call_soon(self._begin):
            raise Closed(CLOSED)

    def send(self, request: Request | None) -> None:
        """Send a request, in the order of the calls. Does not wait; a stream that has ended drops it.

        None says that no further one will come; the broker ends the stream when all is answered.
        """
        if self._over.is_set():
            return
        self._requests.append(request)
        waits = self._waits
        if self._woken != waits and self._loop is not None:
            if threading.get_ident() == self._ident:
                self._wake()
            elif self._is_free:
                self._write_here()
            else:
                self._loop.call_soon_threadsafe(self._wake)
            self._woken = waits

    def wake(self) -> None:
        """Send what a thread has added that was interrupted before it woke the loop. On the event loop only."""
        if self._requests:
            self._wake()

    def finish(self) -> None:
        """Say that no further request will come."""
        self.send(None)

    def cancel(self) -> None:
        """End the stream at once. Does not wait for that."""
        self._connection.call_soon(self._cancel)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the stream, on another thread than that of the loop; return whether it came."""
        return self._over.wait(timeout_s)

    async def wait_ended(self, timeout_s: float) -> bool:
        """Do as `join`, on the loop."""
        if self._running is None:
            return self._over.is_set()
        return bool((await asyncio.wait((self._running,), timeout=timeout_s))[0])

    @property
    def _is_free(self) -> bool:
        return self._call is not None and (self._step is None or self._step.done())

    def _write_here(self) -> None:
        assert self._loop is not None
        if self._write():
            self._loop.call_soon_threadsafe(self._wake)

    # ---- on the event loop ----------------------------------------------------------------------

    def _begin(self) -> None:
        self._loop, self._ident = asyncio.get_running_loop(), threading.get_ident()
        self._running = asyncio.create_task(self._run())
        self._running.add_done_callback(self._ended)  # which comes also if the loop ends before the first step

    def _cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _run(self) -> MiniMQError | None:
        stub = self._connection.broker_stub(self._address)
        call = self._method(stub)()
        connecting = asyncio.create_task(self._connect(call))
        try:
            async for response in call:
                check_answer(response, self._peer)
                self._on_response(response)
        except grpc.aio.AioRpcError as failure:
            error = from_rpc_error(failure, self._peer)
            if isinstance(error, NotAuthenticated) and self._connection.has_new_key(self._address, stub):
                return Unavailable(
                    f"the credentials were replaced: {error.message}"
                )  # another stream shows the new ones
            return error
        except InternalError as false_answer:
            return false_answer
        finally:
            connecting.cancel()
            with self._turn:
                self._call = None
                call.cancel()
                if self._writing is not None:
                    self._writing.close()
                if self._step is not None and not self._step.cancel() and not self._step.cancelled():
                    self._step.exception()  # has been looked at: asyncio complains of others
        return None

    async def _connect(self, call: grpc.aio.StreamStreamCall[Request, Response]) -> None:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the stream has ended, which `_run` sees
            await call.wait_for_connection()  # from here on each write waits for one thing only
            with self._turn:
                self._call = call
            self._wake()

    def _write(self) -> bool:
        """Write what waits to be sent, one write at a time; return True if some is left behind one under way.

        No task does that, which would take each step in a round of the loop of its own. Nor does anybody look for the
        end of a write when nothing waits behind it, but the next request.
        """
        with self._turn:
            try:
                while self._call is not None:
                    if self._writing is not None:
                        assert self._step is not None
                        if not self._step.done():
                            break
                    elif self._requests:
                        request = self._next()
                        self._writing = self._call.done_writing() if request is None else self._call.write(request)
                    else:
                        self._waits += 1
                        if not self._requests:  # once more: one may have come before the loop was seen to wait
                            return False
                        continue
                    try:
                        self._step = self._writing.send(None)
                        self._step._asyncio_future_blocking = False  # as a task says that it has seen the future
                    except StopIteration:
                        self._writing = None
                if not self._requests:
                    self._waits += 1
                return bool(self._requests) and self._call is not None and self._step is not None
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
                self._call = self._writing = None  # the stream has ended, which `_run` sees
                return False
            except BaseException:  # Ctrl-C, in the thread of a caller: nobody knows how far the write has come
                self._call = None
                self.cancel()
                raise

    def _next(self) -> Request | None:
        request = self._requests.popleft()
        if request is not None and self._join is not None and self._requests:
            return self._join(request, self._requests)
        return request

    def _wake(self, _: object = None) -> None:
        if not self._is_watched and self._write():
            assert self._step is not None
            self._is_watched = True
            self._step.add_done_callback(self._written)

    def _written(self, _: object) -> None:
        self._is_watched = False
        self._wake()

    def _ended(self, running: asyncio.Task[MiniMQError | None]) -> None:
        error: MiniMQError | None
        if running.cancelled():
            error = Unavailable(f"{self._peer}: the stream was cancelled")
        elif (failure := running.exception()) is None:
            error = running.result()
        else:  # of the callback: an error of this process, but those who wait must hear of it
            log.error("stream ended: an answer was not taken in peer=%s", self._peer, exc_info=failure)
            error = Unavailable(f"{self._peer}: its answer was not taken in: {failure!r}")
        self._running = None  # which holds the call, and with it the channel, as long as anybody has this
        self._over.set()
        self._requests.clear()
        try:
            self._on_end(error)
        except Exception:
            log.exception("the end of a stream was not taken in peer=%s", self._peer)


class Part(NamedTuple, Generic[Answer]):
    """One answer among those that a response carries."""

    request_id: int
    answer: Answer
    #: False if others to this request will come.
    is_last: bool = True


class CorrelatedStream(Generic[Request, Response, Answer]):
    """A stream whose requests have ids: each answer goes to the receiver of its request. Thread-safe."""

    def __init__(
        self,
        connection: Connection,
        address: str,
        method: StreamMethod[Request, Response],
        parts: Callable[[Response], Iterable[Part[Answer]]],
        join: Callable[[Request, deque[Request | None]], Request] | None = None,
    ) -> None:
        self._peer = f"broker {address}"
        self._parts = parts
        self._ids = itertools.count(1)
        self._lock = threading.Lock()  # protects what follows; never held while a receiver is called
        self._receivers: dict[int, Callable[[Answer | None, MiniMQError | None], None]] = {}
        self._end: MiniMQError | None = None
        self._stream: Stream[Request, Response] = Stream(
            connection, address, method, self._respond, self._conclude, join
        )

    @property
    def ended(self) -> bool:
        """True if the stream is over, so that a new one is needed."""
        return self._end is not None

    def request(
        self, make: Callable[[int], Request], receiver: Callable[[Answer | None, MiniMQError | None], None]
    ) -> int:
        """Send a request, and return its id."""
        with self._lock:
            if self._end is not None:
                raise self._end
            request_id = next(self._ids)
            self._receivers[request_id] = receiver
        self._send(make(request_id))
        return request_id

    def _send(self, request: Request) -> None:
        self._stream.send(request)

    def forget(self, request_id: int, farewell: Request) -> None:
        """Hand no further answer to a request out, and tell the broker, if that has not answered the last time."""
        with self._lock:
            known = self._receivers.pop(request_id, None)
        if known is not None:
            self._stream.send(farewell)

    def wake(self) -> None:
        """Do as `Stream.wake`."""
        self._stream.wake()

    def fail(self, reason: MiniMQError) -> None:
        """End at once, and give all receivers this reason, in the thread of the caller. Does not wait for the end."""
        self._conclude(reason)
        self._stream.cancel()

    def close(self) -> None:
        """End at once, and call no receiver any more. Does not wait for the end."""
        with self._lock:
            self._end = self._end or Closed(CLOSED)
            self._receivers.clear()
        self._stream.cancel()

    def _respond(self, response: Response) -> None:
        for request_id, answer, is_last in self._parts(response):
            with self._lock:
                find = self._receivers.pop if is_last else self._receivers.get
                receiver = find(request_id, None)
            if receiver is not None:
                receiver(answer, None)

    def _conclude(self, error: MiniMQError | None) -> None:
        reason = error or Unavailable(f"{self._peer} ended the connection")
        with self._lock:
            self._end = self._end or reason
            receivers = list(self._receivers.values())
            self._receivers.clear()
        for receiver in receivers:
            receiver(None, reason)
