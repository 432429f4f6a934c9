"""The one way in: every call of a server passes here before its request is read."""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from minimq_common.errors import InvalidArgument, MiniMQError
from minimq_common.security.access_control import AccessControl, UnknownToken
from minimq_common.security.caller import Caller, KnownCaller, ServerCaller, serve_as
from minimq_common.security.needs import CallerKind, has_rule, kind_of

if TYPE_CHECKING:  # at run time the class has no parameters
    _Handler = grpc.RpcMethodHandler[Any, Any]

_Serve = Callable[..., Any]
#: Returns the caller of a call by its context, or raises why it is not let in.
_Admit = Callable[[Any], KnownCaller]
#: Counts the present task as a stream of a caller.
_Stream = Callable[[KnownCaller], AbstractContextManager[None]]


class Door(grpc.GenericRpcHandler):
    """Lets calls in whose makers are known, and checks the requests of those that are no streams.

    Services are added to it in place of the server, so that nothing goes past it. Streams check each request where they
    serve it, by `current_caller`: one that is refused does not end those beside it. A stream whose caller is let go is
    ended.

    Args:
        control: knows the callers.
        in_band: full names of the streams that check each request by themselves; of others the Door does it.
        certificates: callers show certificates: the user that one names has to be that of the key.
        max_streams: streams of one method that the server takes. A user has half of them at most, and leaves the other
            half to others, whatever rights it has or lacks.
    """

    def __init__(
        self,
        control: AccessControl,
        in_band: Collection[str] = (),
        *,
        certificates: bool = False,
        max_streams: float = math.inf,
    ) -> None:
        self._control = control
        self._certificates = certificates
        self._in_band = frozenset(in_band)
        self._most_of_user = (
            math.inf if control.shared.only_reports else max(1, max_streams / 2)
        )  # which may be infinite
        self._handlers: dict[str, _Handler] = {}
        self._kinds: dict[str, CallerKind] = {}

    # ---- in place of a server of gRPC ------------------------------------------------------------

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Take nothing: what is generated names the same handlers a second time, one by one."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, _Handler]) -> None:
        """Take the handlers of a service."""
        for name, handler in handlers.items():
            self._handlers[f"/{service}/{name}"] = handler

    def open(self, server: grpc.aio.Server) -> None:
        """Let a server that is not started yet serve these services, and these alone.

        Raises:
            RuntimeError: there is a call for whose requests no right is decided.
        """
        for method, handler in self._handlers.items():
            name = request_name(handler)
            if not has_rule(name):
                raise RuntimeError(f"{method} takes {name}, for which needs.py has no rule")
            self._kinds[method] = kind_of(name)
        server.add_generic_rpc_handlers((self,))

    # ---- calls -----------------------------------------------------------------------------------

    def service(self, details: grpc.HandlerCallDetails) -> _Handler | None:
        """Return what serves a call; what refuses it does so without reading its request."""
        method: Any = details.method
        handler = self._handlers.get(method)
        if handler is None:
            return None
        kind = self._kinds[method]
        if kind is CallerKind.ANYBODY:
            return handler
        try:
            found = self._control.identify(details.invocation_metadata or ())
            if not isinstance(found, UnknownToken):
                self._check_kind(found, kind)
        except MiniMQError as error:
            return _refusing(error)
        checks = kind is CallerKind.USER and method not in self._in_band
        stream = partial(self._streaming, method.rpartition("/")[2])
        if isinstance(found, UnknownToken):
            return _bound(_reading(handler), partial(self._verify, found, kind), stream, checks=checks)
        return _bound(handler, partial(self._meet, found), stream, checks=checks)

    def _check_kind(self, caller: KnownCaller, kind: CallerKind) -> None:
        if kind is CallerKind.SERVER and not isinstance(caller, ServerCaller):
            caller.refuse_server_call()

    def _meet(self, caller: KnownCaller, context: Any) -> KnownCaller:  # noqa: ANN401 - of any call, here and below
        if self._certificates:
            self._control.check_certificate(caller, context)
        return caller

    def _verify(self, token: UnknownToken, kind: CallerKind, context: Any) -> KnownCaller:  # noqa: ANN401
        caller = self._control.verify(token, context.peer())
        self._check_kind(caller, kind)
        return self._meet(caller, context)

    def _streaming(self, method: str, caller: KnownCaller) -> AbstractContextManager[None]:
        return caller.streaming(method, math.inf if isinstance(caller, ServerCaller) else self._most_of_user)


def request_name(handler: _Handler) -> str:
    """Return the full name of the messages that a handler takes."""
    decode: Any = handler.request_deserializer
    return str(decode.__self__.DESCRIPTOR.full_name)


def _refusing(error: MiniMQError) -> _Handler:
    """Return a stream, whatever the call is: gRPC reads the request of any other one before it is served."""

    async def refuse(_: object, __: object) -> None:
        raise error.with_message(error.message)

    return grpc.stream_stream_rpc_method_handler(refuse)


def _reading(handler: _Handler) -> _Handler:
    """Return a handler that reads its request itself: gRPC, and who counts requests, read that of others before."""
    if handler.request_streaming:
        return handler
    serve: Any = handler.unary_unary

    async def single(requests: Any, context: Any) -> Any:  # noqa: ANN401
        request = await anext(aiter(requests), None)
        if request is None or isinstance(request, bytes):  # as it is if it is too large
            raise InvalidArgument("this call takes one request, and a short one")
        return await serve(request, context)

    return grpc.stream_unary_rpc_method_handler(single, handler.request_deserializer, handler.response_serializer)


def _bound(handler: _Handler, admit: _Admit, stream: _Stream, *, checks: bool) -> _Handler:
    """Return a handler for one call."""
    serve: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    if handler.request_streaming or handler.response_streaming:
        wrapped = _streamed(serve, admit, stream, checks=checks)
    else:
        wrapped = _single(serve, admit)
    kind = f"{_kind(handler.request_streaming)}_{_kind(handler.response_streaming)}"
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(wrapped, handler.request_deserializer, handler.response_serializer)  # type: ignore[no-any-return]


def _single(serve: _Serve, admit: _Admit) -> _Serve:
    async def single(request: Any, context: Any) -> Any:  # noqa: ANN401 - of any call, here and below
        caller = admit(context)
        caller.check(request)
        serve_as(caller)
        return await serve(request, context)

    return single


def _streamed(serve: _Serve, admit: _Admit, stream: _Stream, *, checks: bool) -> _Serve:
    def checked(requests: Any, caller: KnownCaller) -> Any:  # noqa: ANN401
        return _AllowedRequests(requests, caller) if checks else requests

    if inspect.isasyncgenfunction(serve):

        async def generated(requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ANN401
            caller = admit(context)
            serve_as(caller)
            with stream(caller):
                async for response in serve(checked(requests, caller), context):
                    yield response

        return generated

    async def streamed(requests: Any, context: Any) -> Any:  # noqa: ANN401
        caller = admit(context)
        serve_as(caller)
        with stream(caller):
            return await serve(checked(requests, caller), context)

    return streamed


class _AllowedRequests:
    """The requests of a stream, each checked as it comes."""

    def __init__(self, requests: AsyncIterator[Any], caller: Caller) -> None:
        self._requests = requests
        self._caller = caller

    def __aiter__(self) -> _AllowedRequests:
        self._requests = aiter(self._requests)
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401
        request = await anext(self._requests)
        self._caller.check(request)
        return request


def _kind(is_streaming: bool) -> str:
    return "stream" if is_streaming else "unary"
