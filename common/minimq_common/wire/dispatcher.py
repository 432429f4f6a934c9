"""The dispatcher of a server: the table of its methods, and the one path that every call takes.

The dispatcher identifies the caller and checks the stream limits before it reads a request. Until then, gRPC accepts no
more than the flow control window of a stream, and decompresses nothing. The request of a call that needs no key is not
read at all: a stranger could send a large one by halves, and the server would hold it. It checks each request
against its bounds and the rights of the caller before it calls the handler. Every exception ends the call with an error
code, so clients know what happened and whether to retry.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from minimq_common.errors import InternalError, InvalidArgument, MessageTooLarge, MinimqError, SystemBusy, Unavailable
from minimq_common.security.access_control import AccessControl
from minimq_common.security.caller import KnownCaller, serve_as
from minimq_common.security.needs import CallAccess, CallerKind, access_of
from minimq_common.wire import rpc
from minimq_common.wire.bound_check import check_bounds
from minimq_proto.v1 import options_pb2

if TYPE_CHECKING:  # at run time the class has no parameters
    from collections.abc import Iterator

    from google.protobuf.descriptor import ServiceDescriptor

    _Handler = grpc.RpcMethodHandler[Any, Any]

log = logging.getLogger(__name__)

#: Timeout for the first request of a stream.
FIRST_REQUEST_S = 10.0
#: Timeout for the request of a call that is not a stream; a slow connection may need some seconds for 4 MiB.
REQUEST_S = 60.0
#: Larger requests are rejected undecoded. Methods can override it with the option `request_bytes`.
MAX_REQUEST_BYTES = 1 << 20

_ANY_USER = CallAccess(CallerKind.USER)

#: A handler: receives a request, or an iterator over the requests of a stream, and the context of the call.
Serve = Callable[[Any, Any], Awaitable[Any]]
#: Converts an exception of a library to an error with a code; None if it has no equivalent.
Translate = Callable[[Exception], MinimqError | None]


@dataclass(frozen=True, slots=True)
class CallLimits:
    #: Open streams per method.
    max_streams: int = sys.maxsize
    #: Timeout for the first request of a stream; None means no timeout.
    first_request_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Method:
    name: str
    full_name: str
    serve: Serve
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    takes_stream: bool
    gives_stream: bool
    access: CallAccess
    #: The handler checks each request itself, and continues the stream after an invalid one.
    in_band: bool


class Dispatcher(grpc.GenericRpcHandler):
    """Serves the calls of a server, on its event loop."""

    def __init__(
        self,
        limits: CallLimits = CallLimits(),
        *,
        control: AccessControl | None = None,
        translate: Translate = lambda _: None,
        note: Callable[[str, MinimqError], object] = lambda _, __: None,
    ) -> None:
        self._limits, self._control = limits, control
        self._translate, self._note = translate, note
        self._methods: dict[str, _Method] = {}
        self._open: Counter[str] = Counter()
        self._is_draining = False
        self._stream_ended = asyncio.Event()

    def add_all(self, services: Mapping[ServiceDescriptor, Mapping[str, Serve]]) -> None:
        """Add or replace handlers by service and method."""
        for service, handlers in services.items():
            self.add(service, handlers)

    def add(self, service: ServiceDescriptor, handlers: Mapping[str, Serve]) -> None:
        """Add or replace handlers; running calls keep the former ones."""
        for name, serve in handlers.items():
            method = service.methods_by_name[name]
            full_name, options = f"/{service.full_name}/{name}", method.GetOptions().Extensions
            decode = message_factory.GetMessageClass(method.input_type).FromString
            self._methods[full_name] = _Method(
                name,
                full_name,
                serve,
                _decoder(decode, options[options_pb2.request_bytes] or MAX_REQUEST_BYTES),
                _passing_bytes(message_factory.GetMessageClass(method.output_type).SerializeToString),
                method.client_streaming,
                method.server_streaming,
                access_of(method),
                options[options_pb2.in_band],
            )

    def streams(self) -> dict[str, int]:
        """Return the number of open streams by methods that any user may call. Any thread."""
        methods = [each for each in self._methods.copy().values() if each.takes_stream]
        return {each.name: self._open[each.name] for each in methods if each.access == _ANY_USER}

    async def drain(self, longest_s: float) -> None:
        """Reject new streams, and wait up to `longest_s` seconds until no stream of a client is open."""
        self._is_draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                while any(self.streams().values()):
                    self._stream_ended.clear()
                    await self._stream_ended.wait()

    # ---- the path of a call ----------------------------------------------------------------------

    def service(self, details: grpc.HandlerCallDetails) -> _Handler | None:
        """Return the handler for a call; gRPC calls this before it reads a request."""
        method = self._methods.get(str(details.method))
        if method is None:
            return grpc.stream_stream_rpc_method_handler(_unsupported(str(details.method)))

        async def serve(_: object, context: Any) -> Any:
            try:
                if not method.takes_stream:
                    return await self._serve_one(method, context)
                with self._streaming(method, context) as requests:
                    return await method.serve(requests, context)
            except Exception as error:  # noqa: BLE001 - the boundary
                await self._end(error, method, context)

        # Unary calls, too, are registered as streams: otherwise gRPC would read the request before calling `serve`.
        make = grpc.stream_stream_rpc_method_handler if method.gives_stream else grpc.stream_unary_rpc_method_handler
        # Streams are written as bytes: a message that is encoded piece by piece is copied once less.
        return make(serve, method.decode, None if method.gives_stream else method.encode)

    async def _serve_one(self, method: _Method, context: Any) -> Any:
        if method.access.kind is CallerKind.ANYBODY:
            return await method.serve(method.decode(b""), context)
        caller = self._admit(method, context)
        request = await _read_within(context.read, REQUEST_S, method.name)
        if request is grpc.aio.EOF:
            raise InvalidArgument(f"{method.name} was called without a request")
        check_bounds(request)
        if caller is not None:
            caller.enter(method.access)  # again: the right may have been revoked while the request was not sent
            caller.check(request)
        return await method.serve(request, context)

    @contextmanager
    def _streaming(self, method: _Method, context: Any) -> Iterator[_Requests]:
        with self._entered(method.name):
            caller = self._admit(method, context)
            checked = caller if method.access.kind is CallerKind.USER and not method.in_band else None
            with contextlib.nullcontext() if caller is None else caller.streaming():
                yield _Requests(context.read, method, self._limits.first_request_s, checked)

    async def _end(self, error: Exception, method: _Method, context: Any) -> NoReturn:
        """End a call with an error code, unless the call is already over."""
        if isinstance(error, grpc.RpcError | grpc.aio.AbortError):
            raise error
        known = error if isinstance(error, MinimqError) else self._translate(error)
        if isinstance(error, DecodeError):  # from a handler that decodes its requests itself
            known = InvalidArgument(f"a request of {method.full_name} cannot be decoded: {error}")
        if known is None:
            log.error("unexpected error in a call method=%s", method.full_name, exc_info=error)
            known = InternalError(
                f"{method.name} failed on the server: {type(error).__name__}: {error}; its log has the details"
            )
        self._note(method.name, known)
        _forget_frames(error)  # gRPC keeps the error, and its frames would keep the request: up to 70 MB
        if context.done():
            raise asyncio.CancelledError from error  # the caller has left; gRPC would log any other error
        await rpc.abort(context, known)

    # ---- callers ---------------------------------------------------------------------------------

    def _admit(self, method: _Method, context: Any) -> KnownCaller | None:
        if self._control is None:
            return None
        caller = self._control.identify(context.invocation_metadata() or ())
        self._control.check_certificate(caller, context)
        caller.enter(method.access)
        serve_as(caller)
        return caller

    # ---- streams ---------------------------------------------------------------------------------

    @contextmanager
    def _entered(self, method: str) -> Iterator[None]:
        if self._is_draining:
            raise Unavailable("this server is stopping: try another one, or retry later")
        if self._open[method] >= self._limits.max_streams:
            raise SystemBusy(
                f"{self._open[method]} {method} streams are open, which is the limit of this server: close some",
                limit="streams",
            )
        self._open[method] += 1
        try:
            yield
        finally:
            self._open[method] -= 1
            self._stream_ended.set()


class _Requests:
    """Iterates over the checked requests of a stream, with a timeout for the first."""

    def __init__(
        self, read: Callable[[], Awaitable[Any]], method: _Method, first_s: float | None, caller: KnownCaller | None
    ) -> None:
        self._read, self._method, self._first_s, self._caller = read, method, first_s, caller

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> Any:
        request = await self._read() if self._first_s is None else await self._first(self._first_s)
        if request is grpc.aio.EOF:
            raise StopAsyncIteration
        if not self._method.in_band:
            check_bounds(request)
        if self._caller is not None:
            self._caller.check(request)
        return request

    async def _first(self, most_s: float) -> Any:
        request = await _read_within(self._read, most_s, self._method.name)
        self._first_s = None
        return request


async def _read_within(read: Callable[[], Awaitable[Any]], most_s: float, name: str) -> Any:
    # The read is not cancelled at the timeout: gRPC never frees a request that arrives for a cancelled read.
    reading = asyncio.ensure_future(read())
    reading.add_done_callback(retrieve)
    await asyncio.wait((reading,), timeout=most_s)
    if not reading.done():
        raise InvalidArgument(f"ended the {name} call: no request arrived within {most_s:g} s")
    return await reading


def methods_of(service: ServiceDescriptor, servicer: object) -> dict[str, Serve]:
    """Return the handlers of a service: the methods of `servicer` with the same names."""
    return {name: getattr(servicer, name) for name in service.methods_by_name}


def _decoder(decode: Callable[[bytes], Any], most: int) -> Callable[[bytes], Any]:
    if most < 0:  # no limit besides gRPC's; `_end` converts a `DecodeError`
        return decode

    def decoder(data: bytes) -> Any:
        if len(data) > most:
            raise MessageTooLarge(f"a request of {len(data)} bytes is over the limit of this call, {most} bytes")
        try:
            return decode(data)
        except DecodeError as error:
            raise InvalidArgument(f"a request of {len(data)} bytes cannot be decoded: {error}") from None

    return decoder


def _unsupported(method: str) -> Callable[[object, Any], Awaitable[None]]:
    async def end(_: object, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"it does not serve {method}")

    return end


def retrieve(outcome: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a future, so that asyncio does not log it as never retrieved."""
    if not outcome.cancelled():
        outcome.exception()


def _forget_frames(error: BaseException) -> None:
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = None
        each = each.__context__


def _passing_bytes(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    def passing(message: Any) -> bytes:
        return message if isinstance(message, bytes) else encode(message)

    return passing
