"""The outer boundary of a server: a call that fails ends with a coded error, whatever was raised."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from minimq_common import rpc
from minimq_common.errors import InternalError, InvalidArgument, MiniMQError

log = logging.getLogger(__name__)

#: Returns the coded error that an exception of a library stands for, None when it stands for none.
Translate = Callable[[Exception], MiniMQError | None]

if TYPE_CHECKING:  # at run time the class has no parameters
    _Handler = grpc.RpcMethodHandler[Any, Any] | None


class CallBoundary(grpc.aio.ServerInterceptor):
    """Turns what a handler raises into an error with a code. It is entered once for each call or stream.

    Without it gRPC answers UNKNOWN, and callers can neither tell what happened nor whether to try again. What nobody
    foresaw is logged with its place, and answered as `InternalError`. What is no message of protobuf is answered as
    `InvalidArgument`.

    Args:
        translate: knows the exceptions of the libraries that the server is built on.
    """

    def __init__(self, translate: Translate = lambda _: None) -> None:
        self._translate = translate

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
        wrapped = self._wrapped(getattr(handler, kind), handler_call_details.method)
        decode = handler.request_deserializer
        if (
            decode is not None and not handler.request_streaming
        ):  # what is wrong in a stream is raised where its requests are read
            decode = _or_why_not(decode)
        return make(wrapped, decode, handler.response_serializer)  # type: ignore[no-any-return]

    def _wrapped(self, handle: Callable[..., Any], method: str) -> Callable[..., Any]:
        if inspect.isasyncgenfunction(handle):

            @functools.wraps(handle)
            async def generate(request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - of any call
                try:
                    _check_decoded(request)
                    async for response in handle(request, context):
                        yield response
                except Exception as error:  # noqa: BLE001 - the boundary
                    await self._end(error, method, context)

            return generate
        if not inspect.iscoroutinefunction(handle):
            return handle  # of a library's, which runs in a thread of its own

        @functools.wraps(handle)
        async def call(request: Any, context: Any) -> Any:  # noqa: ANN401 - of any call
            try:
                _check_decoded(request)
                return await handle(request, context)
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
                f"{method.rpartition('/')[2]} failed on the server: {type(error).__name__}: {error}; its log says where"
            )
        if context.done():
            raise asyncio.CancelledError from error  # gRPC would log any other error, for nobody
        await rpc.abort(context, known)


def _or_why_not(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a function that decodes a request, or returns the error; to one that is raised gRPC answers UNKNOWN."""

    def decode_or_tell(data: bytes) -> Any:  # noqa: ANN401 - of any call
        try:
            return decode(data)
        except DecodeError as error:
            return error

    return decode_or_tell


def _check_decoded(request: Any) -> None:  # noqa: ANN401 - of any call
    if isinstance(request, DecodeError):
        raise request


def _kind(is_streaming: bool) -> str:
    return "stream" if is_streaming else "unary"
