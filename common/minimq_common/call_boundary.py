"""The outer boundary of a server: no request comes in that is out of its bounds, and no call ends without a code."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from minimq_common import rpc
from minimq_common.bound_check import check_bounds
from minimq_common.errors import InternalError, InvalidArgument, MiniMQError

log = logging.getLogger(__name__)

#: Returns the coded error that an exception of a library stands for, None when it stands for none.
Translate = Callable[[Exception], MiniMQError | None]

if TYPE_CHECKING:  # at run time the class has no parameters
    _Handler = grpc.RpcMethodHandler[Any, Any] | None


class CallBoundary(grpc.aio.ServerInterceptor):
    """Checks requests, and turns what a handler raises into an error with a code. Entered once for each call or stream.

    Every request is checked against the table of `protocol_bounds` before a handler sees it; one that is out of its
    bounds ends the call with `InvalidArgument`. Without this boundary gRPC would also answer UNKNOWN to whatever a
    handler raises, and callers could neither tell what happened nor whether to try again. What nobody foresaw is logged
    with its place, and answered as `InternalError`. What is no message of protobuf is answered as `InvalidArgument`.

    Args:
        translate: knows the exceptions of the libraries that the server is built on.
        in_band: streams that answer a request that is out of its bounds in their own way, and go on: their handlers
            call `check_bounds` themselves. By full method name: "/minimq.v1.Broker/Append".
        note: called with each error that ends a call.
    """

    def __init__(
        self,
        translate: Translate = lambda _: None,
        in_band: Collection[str] = (),
        note: Callable[[MiniMQError], object] = lambda _: None,
    ) -> None:
        self._translate = translate
        self._note = note
        self._in_band = frozenset(in_band)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """Return the handler of a call, wrapped; None, for a call that does not exist, as it is."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        kind = f"{_kind(handler.request_streaming)}_{_kind(handler.response_streaming)}"
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        method = handler_call_details.method
        check: Callable[[Any], Any] = _Checked if handler.request_streaming else _checked
        decode = handler.request_deserializer
        if method in self._in_band:
            check = _as_it_is
        wrapped = self._wrapped(getattr(handler, kind), method, check)
        if decode is not None and not handler.request_streaming:
            decode = _or_why_not(decode)  # what is wrong in a stream is raised where its requests are read
        return make(wrapped, decode, handler.response_serializer)  # type: ignore[no-any-return]

    def _wrapped(self, handle: Callable[..., Any], method: str, check: Callable[[Any], Any]) -> Callable[..., Any]:
        if inspect.isasyncgenfunction(handle):

            @functools.wraps(handle)
            async def generate(request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - of any call
                try:
                    async for response in handle(check(request), context):
                        yield response
                except Exception as error:  # noqa: BLE001 - the boundary
                    await self._end(error, method, context)

            return generate
        if not inspect.iscoroutinefunction(handle):
            return handle  # of a library's, which runs in a thread of its own

        @functools.wraps(handle)
        async def call(request: Any, context: Any) -> Any:  # noqa: ANN401 - of any call
            try:
                return await handle(check(request), context)
            except Exception as error:  # noqa: BLE001 - the boundary
                await self._end(error, method, context)

        return call

    async def _end(self, error: Exception, method: str, context: Any) -> None:  # noqa: ANN401 - of any call
        """End a call with a coded error, unless it was ended before or its caller has left."""
        if isinstance(error, grpc.RpcError | grpc.aio.AbortError):
            raise error
        known = error if isinstance(error, MiniMQError) else self._translate(error)
        if isinstance(error, DecodeError):
            known = InvalidArgument(f"a request of {method} is no message: {error}")
        if known is None:
            log.error("call failed in a way that was not foreseen method=%s", method, exc_info=error)
            known = InternalError(
                f"{method.rpartition('/')[2]} failed on the server: {type(error).__name__}: {error}; its log has the "
                "details"
            )
        self._note(known)
        _forget_places(error)
        if context.done():
            raise asyncio.CancelledError from error  # gRPC would log any other error, for nobody
        await rpc.abort(context, known)


def _forget_places(error: BaseException) -> None:
    """Let go of the frames that an error came through, and of what they have in hand, maybe large requests.

    The end of a call and its error refer to each other, so they stay until the collector of garbage comes by some day.
    """
    each: BaseException | None = error
    while each is not None and each.__traceback__ is not None:
        each.__traceback__ = None
        each = each.__context__


def _or_why_not(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a function that decodes a request, or returns the error; to one that is raised gRPC answers UNKNOWN."""

    def decode_or_tell(data: bytes) -> Any:  # noqa: ANN401 - of any call
        try:
            return decode(data)
        except DecodeError as error:
            return error

    decode_or_tell.__wrapped__ = decode  # type: ignore[attr-defined]  # as functools.wraps has it, which takes longer
    return decode_or_tell


class _Checked:
    """The requests of a stream, each checked as it comes.

    gRPC is asked for them only by whoever reads them: it warns of what is begun and never read.
    """

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = requests

    def __aiter__(self) -> _Checked:
        self._requests = aiter(self._requests)  # the same one each time
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - of any call
        return _checked(await anext(self._requests))


def _checked(request: Any) -> Any:  # noqa: ANN401 - of any call
    if isinstance(request, DecodeError):
        raise request
    if isinstance(request, Message):
        check_bounds(request)
    return request


def _as_it_is(request: Any) -> Any:  # noqa: ANN401 - of any call
    return request


def _kind(is_streaming: bool) -> str:
    return "stream" if is_streaming else "unary"
