"""The dispatcher of a server: one table of methods, and one way that each call of them takes.

A call is refused before its request is read when its caller is not known, or has too many streams. Requests are checked
against their bounds and the rights of the caller before a handler sees them. Whatever is raised ends the call with a
code, so that callers can tell what happened and whether to retry.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.message import DecodeError, Message

from minimq_common import rpc
from minimq_common.bound_check import check_bounds
from minimq_common.errors import InternalError, InvalidArgument, MiniMQError, SystemBusy, Unavailable
from minimq_common.first_requests import AwaitedRequests, Begun
from minimq_common.intake import Intake
from minimq_common.large_requests import LARGE_BYTES, Decoder, LargeRequest, Line, Serve
from minimq_common.security.access_control import AccessControl, UnknownToken
from minimq_common.security.caller import KnownCaller, ServerCaller, serve_as
from minimq_common.security.needs import CallerKind, has_rule, kind_of

if TYPE_CHECKING:  # at run time the class has no parameters
    from collections.abc import Iterator

    from google.protobuf.descriptor import ServiceDescriptor

    _Handler = grpc.RpcMethodHandler[Any, Any]

log = logging.getLogger(__name__)

#: Time in which the first request of a stream has to come, in seconds.
FIRST_REQUEST_S = 10.0
#: Largest request of a call that is no stream, of one with a decision on a transaction, and of a stream that carries no
#: batches. Larger ones are not even opened.
MAX_REQUEST_BYTES = 1 << 20
MAX_DECISION_BYTES = 4 << 20
MAX_STREAM_REQUEST_BYTES = 4 << 20
#: When a client whose stream was refused may come back, in seconds.
_COME_BACK_S = 1.0

#: Returns the coded error that an exception of a library stands for, None when it stands for none.
Translate = Callable[[Exception], MiniMQError | None]
#: Who makes a call; None: nobody asks.
_Caller = KnownCaller | UnknownToken | MiniMQError | None


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits on streams and requests."""

    #: Streams of one method that may be open at once; None: any number.
    max_streams: int | None = None
    option: str = ""
    #: Streams of one method that all users together have; one user may have half of them.
    user_streams: float = math.inf
    #: Time in which the first request of a stream has to come, in seconds; None: any time.
    first_request_s: float | None = None
    call_bytes: int = MAX_REQUEST_BYTES
    opened_bytes: float = math.inf
    #: Requests of calls that are received at once, see `AwaitedRequests`; None: any number.
    calls_at_once: int | None = None
    #: First requests of streams of one method that are received at once; None: any number.
    streams_at_once: int | None = None
    #: Bytes of the largest request of methods for which it is another one; infinite for streams that carry batches,
    #: whose requests may be as large as the server takes.
    largest: Mapping[str, float] = field(default_factory=dict)
    #: Bytes from which on requests of a method are opened one by one, where it is not `LARGE_BYTES`.
    large: Mapping[str, int] = field(default_factory=dict)
    opening: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class _Method:
    name: str
    full_name: str
    serve: Serve
    decode: Callable[[], Decoder]
    encode: Callable[[Any], bytes]
    takes_stream: bool
    gives_stream: bool
    kind: CallerKind
    #: The handler checks each request by itself, and goes on when one is refused.
    in_band: bool


class Dispatcher(grpc.GenericRpcHandler):
    """Serves the calls of a server. Lives on its event loop.

    All requests are read from the context of their call: of a call that is no stream gRPC keeps the request until it
    ends, and its iterator over a stream keeps each of them until the next one has come. Answers may be encoded already.
    """

    def __init__(
        self,
        limits: CallLimits = CallLimits(),
        *,
        control: AccessControl | None = None,
        in_band: Collection[str] = (),
        translate: Translate = lambda _: None,
        note: Callable[[str, MiniMQError], object] = lambda _, __: None,
        intake: Intake | None = None,
    ) -> None:
        self._limits, self._control, self._in_band = limits, control, frozenset(in_band)
        self._translate, self._note, self._intake = translate, note, intake
        is_bounded = control is not None and not control.shared.only_reports
        self._most_of_user = max(1, limits.user_streams / 2) if is_bounded else math.inf
        self._methods: dict[str, _Method] = {}
        self._line = Line()
        self._arrivals = AwaitedRequests(limits.calls_at_once) if limits.calls_at_once else None
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._open: Counter[str] = Counter()
        self._is_draining = False
        self._stream_ended = asyncio.Event()

    def add(self, service: ServiceDescriptor, handlers: Mapping[str, Serve]) -> None:
        """Serve methods of a service from now on; calls that are under way keep their former handlers."""
        for name, serve in handlers.items():
            method = service.methods_by_name[name]
            full_name, request = f"/{service.full_name}/{name}", method.input_type
            if not has_rule(request.full_name):
                raise RuntimeError(f"{full_name} takes {request.full_name}, for which needs.py has no rule")
            self._methods[full_name] = _Method(
                name,
                full_name,
                serve,
                self._decoders(name, message_factory.GetMessageClass(request).FromString, method.client_streaming),
                _passing_bytes(message_factory.GetMessageClass(method.output_type).SerializeToString),
                method.client_streaming,
                method.server_streaming,
                kind_of(request.full_name),
                full_name in self._in_band,
            )

    def _decoders(self, name: str, decode: Callable[[bytes], Any], takes_stream: bool) -> Callable[[], Decoder]:
        limits = self._limits
        if not takes_stream:
            return partial(Decoder, decode, limits.largest.get(name, limits.call_bytes))
        most = limits.largest.get(name, MAX_STREAM_REQUEST_BYTES)
        return partial(Decoder, decode, most, limits.opened_bytes, limits.large.get(name, LARGE_BYTES))

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

    # ---- the way of a call -----------------------------------------------------------------------

    def service(self, details: grpc.HandlerCallDetails) -> _Handler | None:
        """Return what serves a call; called before anything of its request is read."""
        method = self._methods.get(str(details.method))
        if method is None:
            return None
        try:
            caller: _Caller = self._identify(method, details.invocation_metadata or ())
        except MiniMQError as error:
            caller = error.with_message(error.message)  # one that is not raised yet keeps no frames

        decoder = method.decode()

        async def serve(_: object, context: Any) -> Any:  # noqa: ANN401 - of any call
            requests = None
            try:
                if not method.takes_stream:
                    return await self._serve_one(method, decoder, caller, context)
                with self._streaming(method, decoder, caller, context) as requests:
                    return await method.serve(requests, context)
            except Exception as error:  # noqa: BLE001 - the boundary
                ending = self._end(error, method, context)
                del _, requests, context  # see `_end`
            return await ending

        # gRPC reads the request of any other kind of call before it is served.
        make = grpc.stream_stream_rpc_method_handler if method.gives_stream else grpc.stream_unary_rpc_method_handler
        return make(serve, decoder, method.encode)

    async def _serve_one(self, method: _Method, decoder: Decoder, met: _Caller, context: Any) -> Any:  # noqa: ANN401
        caller = self._admit(method, met, context)
        peer = context.peer()
        decoder.count_for(self._intake, peer)
        requests = _Requests(context.read)
        request = await (
            self._arrivals.receive(requests, method.name, peer) if self._arrivals else _only(requests, method.name)
        )

        async def answer(request: Any, context: Any) -> Any:  # noqa: ANN401
            check_bounds(request)
            if caller is not None:
                caller.check(request)
            return await method.serve(request, context)

        if isinstance(request, LargeRequest):
            return await self._line.serve(method.name, request, answer, context)
        return await answer(request, context)

    @contextmanager
    def _streaming(self, method: _Method, decoder: Decoder, met: _Caller, context: Any) -> Iterator[Any]:  # noqa: ANN401
        with self._entered(method.name):
            caller = self._admit(method, met, context)
            decoder.count_for(self._intake, context.peer())
            line = None if method.name in self._limits.opening else self._line
            checked = caller if method.kind is CallerKind.USER and not method.in_band else None
            requests = _Requests(context.read, line, checked, checks_bounds=not method.in_band)
            with self._counted(method.name, caller):
                yield self._begun(requests, method.name)

    async def _end(self, error: Exception, method: _Method, context: Any) -> NoReturn:  # noqa: ANN401
        """End a call with a coded error, unless it was ended before or its caller has left.

        gRPC keeps the error with which a call ends, and by its frames that would keep the call and its requests: a
        flood of refused calls would stay until the next full collection. So no frame is left that knows the call.
        """
        if isinstance(error, grpc.RpcError | grpc.aio.AbortError):
            del context
            _forget_frames(error)
            raise error
        known = error if isinstance(error, MiniMQError) else self._translate(error)
        if isinstance(error, DecodeError):  # of a handler that decodes its requests itself
            known = InvalidArgument(f"a request of {method.full_name} is no message: {error}")
        if known is None:
            log.error("call failed in a way that was not foreseen method=%s", method.full_name, exc_info=error)
            known = InternalError(
                f"{method.name} failed on the server: {type(error).__name__}: {error}; its log has the details"
            )
        self._note(method.name, known)
        _forget_frames(error)
        if context.done():
            raise asyncio.CancelledError from error  # gRPC would log any other error, for nobody
        try:
            await rpc.abort(context, known)
        except grpc.aio.AbortError as aborted:
            del context, error
            _forget_frames(aborted)
            raise

    # ---- callers ---------------------------------------------------------------------------------

    def _identify(
        self, method: _Method, metadata: Iterable[tuple[str, str | bytes]]
    ) -> KnownCaller | UnknownToken | None:
        if self._control is None or method.kind is CallerKind.ANYBODY:
            return None
        found = self._control.identify(metadata)
        if not isinstance(found, UnknownToken):
            _check_kind(found, method.kind)
        return found

    def _admit(self, method: _Method, met: _Caller, context: Any) -> KnownCaller | None:  # noqa: ANN401 - of any call
        if met is None:
            return None
        if isinstance(met, MiniMQError):
            raise met
        assert self._control is not None
        if isinstance(met, UnknownToken):
            met = self._control.verify(met, context.peer())
            _check_kind(met, method.kind)
        self._control.check_certificate(met, context)
        serve_as(met)
        return met

    def _counted(self, method: str, caller: KnownCaller | None) -> AbstractContextManager[None]:
        if caller is None:
            return contextlib.nullcontext()
        return caller.streaming(method, math.inf if isinstance(caller, ServerCaller) else self._most_of_user)

    # ---- streams ---------------------------------------------------------------------------------

    @contextmanager
    def _entered(self, method: str) -> Iterator[None]:
        if self._is_draining:
            raise Unavailable("this server stops: try another one, or later")
        most = self._limits.max_streams
        if most is not None and self._open[method] >= most:
            raise SystemBusy(
                f"{self._open[method]} {method} streams are open, which is the limit of this server: close some, or "
                f"start it with a larger {self._limits.option}",
                retry_after_s=_COME_BACK_S,
                limit="streams",
            )
        self._open[method] += 1
        try:
            yield
        finally:
            self._open[method] -= 1
            self._stream_ended.set()

    def _begun(self, requests: _Requests, method: str) -> _Requests | Begun:
        limits, turns = self._limits, None
        if limits.first_request_s is None:
            return requests
        if limits.streams_at_once is not None:
            turns = self._turns.setdefault(method, asyncio.Semaphore(limits.streams_at_once))
        return Begun(requests, method, limits.first_request_s, turns)


class _Requests:
    """Requests of a call, which ends at one that is too large."""

    def __init__(
        self,
        read: Callable[[], Awaitable[Any]],
        line: Line | None = None,
        caller: KnownCaller | None = None,
        *,
        checks_bounds: bool = False,
    ) -> None:
        self._read, self._line, self._caller, self._checks_bounds = read, line, caller, checks_bounds

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - of any call
        request = await self._read()
        if request is grpc.aio.EOF:
            raise StopAsyncIteration
        if isinstance(request, LargeRequest) and self._line is not None:
            request = await self._line.open(request)
        if self._checks_bounds and isinstance(request, Message):
            check_bounds(request)
        if self._caller is not None:
            self._caller.check(request)
        return request


def methods_of(service: ServiceDescriptor, servicer: object) -> dict[str, Serve]:
    """Return the handlers of a service, which are methods of an object."""
    return {name: getattr(servicer, name) for name in service.methods_by_name}


async def _only(requests: _Requests, method: str) -> Any:  # noqa: ANN401 - of any call
    try:
        return await anext(requests)
    except StopAsyncIteration:
        raise InvalidArgument(f"{method} came without a request") from None


def _check_kind(caller: KnownCaller, kind: CallerKind) -> None:
    if kind is CallerKind.SERVER and not isinstance(caller, ServerCaller):
        caller.refuse_server_call()


def _forget_frames(error: BaseException) -> None:
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = None
        each = each.__context__
    error.__context__ = None


def _passing_bytes(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    def passing(message: Any) -> bytes:  # noqa: ANN401 - of any call
        return message if isinstance(message, bytes) else encode(message)

    return passing
