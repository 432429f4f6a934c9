"""The requests of a name server as they come in: bounded in size and number before they are read."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from minimq_common import rpc
from minimq_common.errors import InvalidArgument, MessageTooLarge, MiniMQError, SystemBusy
from minimq_nameserver.bounds import MAX_CALL_BYTES

#: Calls whose request is not there yet, of which nobody knows how large it is; a further one takes the place of the
#: one that has waited longest.
_AT_ONCE = 8
#: Streams of one kind whose first request is received at the same time, and how many seconds that may take.
_STREAMS_AT_ONCE, _FIRST_S = 16, 5.0
#: Seconds after which a call that gave way is to be made again.
_RETRY_S = 0.1
#: Requests of streams up to that size are opened as they come; larger ones by who reads them, a part at a time.
OPENED_BYTES = 64 << 10

if TYPE_CHECKING:  # at run time the class has no parameters
    _Handler = grpc.RpcMethodHandler[Any, Any] | None


class Receiving(grpc.aio.ServerInterceptor):
    """Bounds what requests take before anybody has looked at them.

    The request of a call is a few hundred bytes, and comes with the call. So a large one is refused before it is
    opened, and of those that take their time only some are received at once: each may become as large as the largest
    frame. A large request of a stream is handed over as bytes, and answers may be bytes as well.
    """

    def __init__(self) -> None:
        self._receiving: dict[asyncio.Task[Any], None] = {}  # the oldest first
        self._given_up: set[asyncio.Task[Any]] = set()
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_STREAMS_AT_ONCE))

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """Return the handler of a call, wrapped; None, for a call that does not exist, as it is."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        encode = functools.partial(_encoded, handler.response_serializer)
        if handler.request_streaming:
            parse = functools.partial(_opened, handler.request_deserializer)
            method = handler_call_details.method
            if inspect.iscoroutinefunction(handler.stream_stream):
                begun = self._begun(handler.stream_stream, method)
                handler = handler._replace(stream_stream=begun)
            return handler._replace(request_deserializer=parse, response_serializer=encode)  # type: ignore[no-any-return]
        behave, make = handler.unary_unary or handler.unary_stream, grpc.stream_unary_rpc_method_handler
        if handler.response_streaming:
            make = grpc.stream_stream_rpc_method_handler
        name = _name(handler_call_details.method)
        wrapped = self._wrapped(behave, handler.request_deserializer, name)
        return make(wrapped, None, encode)

    def _wrapped(self, behave: Callable[..., Any], parse: Callable[[bytes], Any], name: str) -> Callable[..., Any]:
        async def call(_: object, context: Any) -> Any:  # noqa: ANN401 - of any call
            try:
                request = _parsed(parse, await self._receive(context, name), name)
            except MiniMQError as error:
                await rpc.abort(context, error)
            return await behave(request, context)

        return call

    def _begun(self, behave: Callable[..., Any], method: str) -> Callable[..., Any]:
        turns = self._turns[method]

        async def serve(requests: Any, context: Any) -> None:  # noqa: ANN401 - of any stream
            await behave(_Begun(requests, turns, _name(method)), context)

        return serve

    async def _receive(self, context: Any, name: str) -> bytes:  # noqa: ANN401 - of any call
        """Return the request of a call when all of it is there.

        Raises:
            SystemBusy: others came after it, and it is not there yet.
            MessageTooLarge, InvalidArgument: it is not what a call may come with.
        """
        task = asyncio.current_task()
        assert task is not None
        if len(self._receiving) >= _AT_ONCE:
            oldest = next(iter(self._receiving))
            del self._receiving[oldest]
            self._given_up.add(oldest)
            oldest.cancel()
        self._receiving[task] = None
        # It is left to come to its end, which it does with the call: gRPC never gives back a request that comes after
        # its reader was cancelled.
        reading = asyncio.ensure_future(context.read())
        reading.add_done_callback(_forget)
        try:
            raw = await asyncio.shield(reading)
        except asyncio.CancelledError:
            if task not in self._given_up:
                raise
            task.uncancel()
            raise SystemBusy(
                "many requests come in at once, and this one was not there when others were", retry_after_s=_RETRY_S
            ) from None
        finally:
            self._receiving.pop(task, None)
            self._given_up.discard(task)
        if raw is grpc.aio.EOF:
            raise InvalidArgument(f"{name} came without a request")
        size = len(raw)
        if size > MAX_CALL_BYTES:
            del raw  # the error remembers this frame, for longer than is good
            raise MessageTooLarge(f"{name} came with {size} bytes, the limit is {MAX_CALL_BYTES}")
        return raw  # type: ignore[no-any-return]


class _Begun:
    """The requests of a stream. The first is read when it is its turn, and has to come soon then."""

    def __init__(self, requests: Any, turns: asyncio.Semaphore, name: str) -> None:  # noqa: ANN401 - of any stream
        self._requests = requests
        self._next: Callable[[], Awaitable[Any]] | None = None  # gRPC wants what it gives to be used
        self._turns = turns
        self._name = name

    def __aiter__(self) -> _Begun:
        return self

    def __anext__(self) -> Awaitable[Any]:
        return self._first() if self._next is None else self._next()

    async def _first(self) -> Any:  # noqa: ANN401 - of any stream
        async with self._turns:
            self._next = aiter(self._requests).__anext__
            try:
                async with asyncio.timeout(_FIRST_S):
                    return await self._next()
            except TimeoutError:
                raise InvalidArgument(f"no request came within {_FIRST_S:g} s of the begin of {self._name}") from None


def _forget(reading: asyncio.Future[Any]) -> None:
    if not reading.cancelled():
        reading.exception()  # nobody may be there to ask for it


def _encoded(encode: Callable[[Any], bytes], response: Any) -> bytes:  # noqa: ANN401 - of any call
    return response if isinstance(response, bytes) else encode(response)


def _opened(parse: Callable[[bytes], Any], raw: bytes) -> Any:  # noqa: ANN401 - of any stream
    return parse(raw) if len(raw) <= OPENED_BYTES else raw


def _parsed(parse: Callable[[bytes], Any], raw: bytes, name: str) -> Any:  # noqa: ANN401 - of any call
    try:
        return parse(raw)
    except DecodeError as error:
        raise InvalidArgument(f"{name} came with what is no request: {error}") from None


def _name(method: str) -> str:
    return method.rpartition("/")[2]
