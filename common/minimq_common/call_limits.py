"""Bounds of what a server takes in of its calls, in number, size and time, before its handlers see it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from minimq_common import rpc
from minimq_common.errors import InvalidArgument, MiniMQError, SystemBusy, Unavailable
from minimq_common.first_requests import AwaitedRequests, Begun
from minimq_common.intake import Intake
from minimq_common.large_requests import LARGE_BYTES, Decoder, LargeRequest, Line, Serve

#: Time in which the first request of a stream has to come, in seconds.
FIRST_REQUEST_S = 10.0
#: Largest request of a call that is no stream, of one with a decision on a transaction, and of a stream that carries no
#: batches. Larger ones are not even opened.
MAX_REQUEST_BYTES = 1 << 20
MAX_DECISION_BYTES = 4 << 20
MAX_STREAM_REQUEST_BYTES = 4 << 20
#: When a client whose stream was refused may come back, in seconds.
_COME_BACK_S = 1.0

if TYPE_CHECKING:  # at run time the class has no parameters
    _Handler = grpc.RpcMethodHandler[Any, Any] | None


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The size of requests, and the number that is received at once.

    Attributes:
        call_bytes: of the largest request of a call that is no stream.
        opened_bytes: larger requests of streams are handed on as they came, for their handler to decode in parts.
        calls_at_once: requests of calls that are received at once, see `AwaitedRequests`; None: any number.
        streams_at_once: first requests of streams of one method that are received at once; None: any number.
        largest: bytes of the largest request of methods for which it is another one; infinite for streams that carry
            batches, whose requests may be as large as the server takes.
        large: bytes from which on requests of a method are opened one by one, where it is not `LARGE_BYTES`.
        opening: streams whose handlers take a `LargeRequest`, and open it when it is its turn.
    """

    call_bytes: int = MAX_REQUEST_BYTES
    opened_bytes: float = math.inf
    calls_at_once: int | None = None
    streams_at_once: int | None = None
    largest: Mapping[str, float] = field(default_factory=dict)
    large: Mapping[str, int] = field(default_factory=dict)
    opening: Collection[str] = ()


class CallLimits(grpc.aio.ServerInterceptor):
    """Bounds the requests and streams of a server, in whose calls answers may be encoded already.

    It is entered once for each call, and the `CallBoundary` stands inside of it. All requests are read from the context
    of their call, as those of streams are: of another call gRPC keeps the request until it ends, and its iterator over
    the requests of a stream keeps each of them until the next one has come.

    Args:
        max_streams: streams of one method that may be open at once; None: any number.
        option: by which that is set, for the text of the error.
        first_request_s: time in which the first request of a stream has to come, in seconds; None: any time.
        refused: called with the method, in lower case, and the error of each stream that is one too many.
        intake: counts what was taken in.
        requests: how large they may be, and how many are received at once.
    """

    def __init__(
        self,
        max_streams: int | None = None,
        option: str = "",
        *,
        first_request_s: float | None = None,
        refused: Callable[[str, SystemBusy], object] = lambda _, __: None,
        intake: Intake | None = None,
        requests: RequestLimits = RequestLimits(),
    ) -> None:
        self._max_streams = max_streams
        self._option = option
        self._first_request_s = first_request_s
        self._intake = intake
        self._requests = requests
        self._line = Line()
        self._arrivals = AwaitedRequests(requests.calls_at_once) if requests.calls_at_once else None
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._open: Counter[str] = Counter()
        self._is_draining = False
        self._stream_ended = asyncio.Event()
        self._refused = refused

    async def drain(self, methods: Collection[str], longest_s: float) -> None:
        """Refuse further streams, and return when none of these methods is open, or after a while.

        A server that stops while a stream is open closes the connection with its end. A client that sends at that
        moment is reset, and may lose answers that it has not read.
        """
        self._is_draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                while any(self._open[method] for method in methods):
                    self._stream_ended.clear()
                    await self._stream_ended.wait()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """Return the handler of a call, wrapped."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        serve = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        if not inspect.iscoroutinefunction(serve):
            return handler  # type: ignore[no-any-return]  # of a library's
        method = handler_call_details.method.rpartition("/")[2]
        decoder = self._decoder(handler, method)
        encode = _passing_bytes(handler.response_serializer)
        wrapped = (self._streamed if handler.request_streaming else self._single)(serve, decoder, method)
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return make(_coded(wrapped), decoder, encode)

    def _decoder(self, handler: Any, method: str) -> Decoder:  # noqa: ANN401 - of any call
        """Return what decodes the requests of a call."""
        limits = self._requests
        if not handler.request_streaming:
            return Decoder(handler.request_deserializer, limits.largest.get(method, limits.call_bytes))
        most = limits.largest.get(method, MAX_STREAM_REQUEST_BYTES)
        large = limits.large.get(method, LARGE_BYTES)
        return Decoder(handler.request_deserializer, most, limits.opened_bytes, large)

    def _single(self, serve: Serve, decoder: Decoder, method: str) -> Serve:
        async def single(_: object, context: Any) -> Any:  # noqa: ANN401 - of any call
            peer = context.peer()
            decoder.count_for(self._intake, peer)
            requests = _Requests(context.read)
            request = await (
                self._arrivals.receive(requests, method, peer) if self._arrivals else _only(requests, method)
            )
            if isinstance(request, LargeRequest):
                return await self._line.serve(method, request, serve, context)
            return await serve(request, context)

        return single

    def _streamed(self, serve: Serve, decoder: Decoder, method: str) -> Serve:
        async def streamed(_: object, context: Any) -> Any:  # noqa: ANN401 - of any stream
            self._enter(method)
            try:
                decoder.count_for(self._intake, context.peer())
                line = None if method in self._requests.opening else self._line
                return await serve(self._begun(_Requests(context.read, line), method), context)
            finally:
                self._open[method] -= 1
                self._stream_ended.set()

        return streamed

    def _enter(self, method: str) -> None:
        if self._is_draining:
            raise Unavailable("this server stops: try another one, or later")
        if self._max_streams is not None and self._open[method] >= self._max_streams:
            error = SystemBusy(
                f"{self._open[method]} {method} streams are open, which is the limit of this server: close some, or "
                f"start it with a larger {self._option}",
                retry_after_s=_COME_BACK_S,
                limit="streams",
            )
            self._refused(method.lower(), error)
            raise error
        self._open[method] += 1

    def _begun(self, requests: _Requests, method: str) -> _Requests | Begun:
        if self._first_request_s is None:
            return requests
        at_once, turns = self._requests.streams_at_once, None
        if at_once is not None:
            turns = self._turns.setdefault(method, asyncio.Semaphore(at_once))
        return Begun(requests, method, self._first_request_s, turns)


class _Requests:
    """Requests of a call, which ends at one that is too large.

    Args:
        read: returns the next one.
        line: in which large ones are opened; None: they are handed on as they are.
    """

    def __init__(self, read: Callable[[], Awaitable[Any]], line: Line | None = None) -> None:
        self._read = read
        self._line = line

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - of any call
        request = await self._read()
        if request is grpc.aio.EOF:
            raise StopAsyncIteration
        if isinstance(request, LargeRequest) and self._line is not None:
            return await self._line.open(request)
        return request


async def _only(requests: _Requests, method: str) -> Any:  # noqa: ANN401 - of any call
    """Return the only request of a call."""
    try:
        return await anext(requests)
    except StopAsyncIteration:
        raise InvalidArgument(f"{method} came without a request") from None


def _coded(serve: Serve) -> Serve:
    """Return a handler that ends its call with a code when it is refused here."""

    @functools.wraps(serve)
    async def coded(request: Any, context: Any) -> Any:  # noqa: ANN401 - of any call
        try:
            try:
                return await serve(request, context)
            except MiniMQError as error:
                if context.done():
                    raise asyncio.CancelledError from error  # gRPC would log any other error, for nobody
                await rpc.abort(context, error)
        except grpc.aio.AbortError as aborted:
            # The call keeps it, and it would keep the call, by the frames that it went through: a flood of refused
            # calls would stay until the next full collection, which had to free all of them at once.
            del request, context
            _forget_frames(aborted)
            raise

    return coded


def _forget_frames(error: BaseException) -> None:
    """Let go of the calls that raised an error, and the errors before it."""
    errors: BaseException | None = error
    while errors is not None:
        errors.__traceback__ = None
        errors = errors.__context__
    error.__context__ = None


def _passing_bytes(encode: Callable[[Any], bytes] | None) -> Callable[[Any], bytes]:
    """Return an encoder that leaves alone what is encoded already."""

    def passing(message: Any) -> bytes:  # noqa: ANN401 - of any stream
        if isinstance(message, bytes):
            return message
        assert encode is not None
        return encode(message)

    return passing
