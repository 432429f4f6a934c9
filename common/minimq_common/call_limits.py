"""Bounds on the streams and requests that a server takes in: number, size and time, before they are read."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from minimq_common.errors import MessageTooLarge, SystemBusy
from minimq_common.first_requests import Arrivals, Begun
from minimq_common.intake import AROUND_REQUEST, Intake, Taken

#: Time in which the first request of a stream has to come, in seconds.
FIRST_REQUEST_S = 10.0
#: Largest request of a call that is no stream: a decision on a large transaction. Larger ones are not even decoded.
MAX_REQUEST_BYTES = 16 << 20
#: Largest request of a stream that carries no batches. Larger ones are not even decoded.
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
        calls_at_once: requests of calls that are received at once, see `Arrivals`; None: any number.
        streams_at_once: first requests of streams of one method that are received at once; None: any number.
    """

    call_bytes: int = MAX_REQUEST_BYTES
    opened_bytes: float = math.inf
    calls_at_once: int | None = None
    streams_at_once: int | None = None


class CallLimits(grpc.aio.ServerInterceptor):
    """Bounds the requests and streams of a server, in whose calls answers may be encoded already.

    It is entered once for each call, and stands inside of the `CallBoundary`.

    Args:
        max_streams: streams of one method that may be open at once; None: any number.
        option: by which that is set, for the text of the error.
        first_request_s: time in which the first request of a stream has to come, in seconds; None: any time.
        refused: counts streams that were refused, by method in lower case.
        intake: counts what was taken in.
        batch_methods: streams whose requests carry batches, which may be as large as the server takes.
        requests: how large they may be, and how many are received at once.
    """

    def __init__(
        self,
        max_streams: int | None = None,
        option: str = "",
        *,
        first_request_s: float | None = None,
        refused: Counter[str] | None = None,
        intake: Intake | None = None,
        batch_methods: Collection[str] = (),
        requests: RequestLimits = RequestLimits(),
    ) -> None:
        self._max_streams = max_streams
        self._batch_methods = batch_methods
        self._option = option
        self._first_request_s = first_request_s
        self._intake = intake
        self._requests = requests
        self._arrivals = Arrivals(requests.calls_at_once) if requests.calls_at_once else None
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._open: Counter[str] = Counter()
        self._refused = Counter() if refused is None else refused

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
        decode = _Counting(handler.request_deserializer, *self._sizes(handler, method))
        encode = _passing_bytes(handler.response_serializer)
        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(self._limited(serve, decode, method), decode, encode)
        if self._arrivals is not None and not handler.request_streaming:
            make = (
                grpc.stream_stream_rpc_method_handler
                if handler.response_streaming
                else grpc.stream_unary_rpc_method_handler
            )
            return make(self._received(serve, decode, method, self._arrivals), decode, encode)
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._counted(serve, decode), decode, encode)
        return handler  # type: ignore[no-any-return]  # of a kind that our services do not have

    def _sizes(self, handler: Any, method: str) -> tuple[float, float]:  # noqa: ANN401 - of any call
        """Return how large a request may be, and from where on it is not opened, in bytes."""
        if not handler.request_streaming:
            return self._requests.call_bytes, math.inf
        most = math.inf if method in self._batch_methods else MAX_STREAM_REQUEST_BYTES
        return most, self._requests.opened_bytes

    def _counted(self, serve: Callable[..., Any], decode: _Counting) -> Callable[..., Any]:
        @functools.wraps(serve)
        async def counted(request: Any, context: Any) -> Any:  # noqa: ANN401 - of any call
            decode.count_for(self._intake, context)
            if isinstance(request, MessageTooLarge):
                raise request
            return await serve(request, context)

        return counted

    def _received(
        self, serve: Callable[..., Any], decode: _Counting, method: str, arrivals: Arrivals
    ) -> Callable[..., Any]:
        @functools.wraps(serve)
        async def received(requests: Any, context: Any) -> Any:  # noqa: ANN401 - of any call
            decode.count_for(self._intake, context)
            request = await arrivals.receive(_Refusing(requests), method, context.peer())
            return await serve(request, context)

        return received

    def _limited(self, serve: Callable[..., Any], decode: _Counting, method: str) -> Callable[..., Any]:
        @functools.wraps(serve)
        async def limited(requests: Any, context: Any) -> None:  # noqa: ANN401 - of any stream
            self._enter(method)
            try:
                decode.count_for(self._intake, context)
                begun = self._begun(requests, method)
                await serve(begun if method in self._batch_methods else _Refusing(begun), context)
            finally:
                self._open[method] -= 1

        return limited

    def _enter(self, method: str) -> None:
        if self._max_streams is not None and self._open[method] >= self._max_streams:
            self._refused[method.lower()] += 1
            raise SystemBusy(
                f"{self._open[method]} {method} streams are open, which is the limit of this server: close some, or "
                f"start it with a larger {self._option}",
                retry_after_s=_COME_BACK_S,
            )
        self._open[method] += 1

    def _begun(self, requests: Any, method: str) -> Any:  # noqa: ANN401 - of any stream
        if self._first_request_s is None:
            return requests
        at_once, turns = self._requests.streams_at_once, None
        if at_once is not None:
            turns = self._turns.setdefault(method, asyncio.Semaphore(at_once))
        return Begun(requests, method, self._first_request_s, turns)


class _Counting:
    """Decodes the requests of one call, and counts their bytes for its connection.

    In place of one that is too large it returns the error: to one that is raised here gRPC answers UNKNOWN.

    Args:
        decode: of gRPC.
        most: bytes of the largest request.
        opened: larger ones are returned as they are, in bytes.
    """

    __slots__ = ("_decode", "_most", "_opened", "_taken")

    def __init__(self, decode: Callable[[bytes], Any] | None, most: float, opened: float) -> None:
        self._decode = decode
        self._most = most
        self._opened = opened
        self._taken = Taken()  # until the connection is known

    def count_for(self, intake: Intake | None, context: Any) -> None:  # noqa: ANN401 - of any call
        """Count for the connection of a call."""
        if intake is not None:
            taken = intake.of(context.peer())
            taken.bytes += self._taken.bytes
            self._taken = taken

    def __call__(self, data: bytes) -> Any:  # noqa: ANN401 - of any call
        size = len(data)
        self._taken.bytes += size + AROUND_REQUEST
        if size > self._most:
            return MessageTooLarge(f"a request of {size} bytes is over the limit of this call, {self._most} bytes")
        return self._decode(data) if self._decode and size <= self._opened else data


class _Refusing:
    """Requests of a stream, which ends at one that is too large."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = requests
        self._next: Callable[[], Awaitable[Any]] | None = None  # see `Begun`

    def __aiter__(self) -> _Refusing:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - of any stream
        if self._next is None:
            self._next = aiter(self._requests).__anext__
        request = await self._next()
        if isinstance(request, MessageTooLarge):
            raise request
        return request


def _passing_bytes(encode: Callable[[Any], bytes] | None) -> Callable[[Any], bytes]:
    """Return an encoder that leaves alone what is encoded already."""

    def passing(message: Any) -> bytes:  # noqa: ANN401 - of any stream
        if isinstance(message, bytes):
            return message
        assert encode is not None
        return encode(message)

    return passing
