"""How many streams a server has, how soon each of them begins, and how their messages get to gRPC."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from minimq_common.errors import InvalidArgument, MessageTooLarge, SystemBusy
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


class CallLimits(grpc.aio.ServerInterceptor):
    """Bounds the streams of a server. It is entered once for each call, and stands inside of the `CallBoundary`.

    Args:
        max_streams: streams of one method that may be open at once; None: any number.
        option: by which that is set, for the text of the error.
        first_request_s: time in which the first request of a stream has to come, in seconds; None: any time.
        refused: counts streams that were refused, by method in lower case.
        intake: counts what was taken in.
        batch_methods: streams whose requests carry batches, which may be as large as the server takes.
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
    ) -> None:
        self._max_streams = max_streams
        self._batch_methods = batch_methods
        self._option = option
        self._first_request_s = first_request_s
        self._intake = intake
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
        kind = "stream_stream" if handler.request_streaming and handler.response_streaming else "unary_unary"
        serve = getattr(handler, kind)
        if not inspect.iscoroutinefunction(serve):
            return handler  # type: ignore[no-any-return]  # of a library's, or of a kind that our servers do not have
        method = handler_call_details.method.rpartition("/")[2]
        decode = _Counting(handler.request_deserializer, self._largest(kind, method))
        if kind == "unary_unary":
            return grpc.unary_unary_rpc_method_handler(
                self._counted(serve, decode), decode, handler.response_serializer
            )
        limited = self._limited(serve, decode, method)
        return grpc.stream_stream_rpc_method_handler(limited, decode, _passing_bytes(handler.response_serializer))

    def _largest(self, kind: str, method: str) -> float:
        """Return the size of the largest request of a call, in bytes."""
        if kind == "unary_unary":
            return MAX_REQUEST_BYTES
        return math.inf if method in self._batch_methods else MAX_STREAM_REQUEST_BYTES

    def _counted(self, serve: Callable[..., Any], decode: _Counting) -> Callable[..., Any]:
        @functools.wraps(serve)
        async def counted(request: Any, context: Any) -> Any:  # noqa: ANN401 - of any call
            decode.count_for(self._intake, context)
            if isinstance(request, MessageTooLarge):
                raise request
            return await serve(request, context)

        return counted

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
        return requests if self._first_request_s is None else _Begun(requests, method, self._first_request_s)


class _Counting:
    """Decodes the requests of one call, and counts their bytes for its connection.

    In place of one that is too large it returns the error: to one that is raised here gRPC answers UNKNOWN.
    """

    __slots__ = ("_decode", "_most", "_taken")

    def __init__(self, decode: Callable[[bytes], Any] | None, most: float = math.inf) -> None:
        self._decode = decode
        self._most = most
        self._taken = Taken()  # until the connection is known

    def count_for(self, intake: Intake | None, context: Any) -> None:  # noqa: ANN401 - of any call
        """Count for the connection of a call."""
        if intake is not None:
            taken = intake.of(context.peer())
            taken.bytes += self._taken.bytes
            self._taken = taken

    def __call__(self, data: bytes) -> Any:  # noqa: ANN401 - of any call
        self._taken.bytes += len(data) + AROUND_REQUEST
        if len(data) > self._most:
            return MessageTooLarge(f"a request of {len(data)} bytes is over the limit of this call, {self._most} bytes")
        return self._decode(data) if self._decode else data


class _Begun:
    """Requests of a stream, the first of which has to come soon. The others are handed on as they are."""

    def __init__(self, requests: AsyncIterator[Any], method: str, first_s: float) -> None:
        self._requests = requests
        self._next: Callable[[], Awaitable[Any]] | None = None  # gRPC warns of what is begun and never read
        self._method = method
        self._first_s = first_s

    def __aiter__(self) -> _Begun:
        return self

    def __anext__(self) -> Awaitable[Any]:
        return self._first() if self._next is None else self._next()

    async def _first(self) -> Any:  # noqa: ANN401 - of any stream
        self._next = aiter(self._requests).__anext__
        try:
            async with asyncio.timeout(self._first_s):
                return await self._next()
        except TimeoutError:
            raise InvalidArgument(
                f"the {self._method} stream is ended: no request came within {self._first_s:g} s of its begin"
            ) from None


class _Refusing:
    """Requests of a stream, which ends at one that is too large."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = requests
        self._next: Callable[[], Awaitable[Any]] | None = None  # see `_Begun`

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
