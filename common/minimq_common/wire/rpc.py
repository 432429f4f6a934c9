"""Shared gRPC code: channels, server options, and the conversion between errors and gRPC statuses."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

import grpc
import grpc.aio

from minimq_common import errors
from minimq_common.errors import MinimqError
from minimq_common.wire.protocol_bounds import MAX_FRAME_BYTES
from minimq_common.wire.proxies import proxy_error
from minimq_proto.v1 import errors_pb2

if TYPE_CHECKING:
    from minimq_common.security.certificates import Trust
    from minimq_common.security.server_secrets import ServerSecrets
    from minimq_common.security.user_key import UserKey

#: Explains "connection refused".
NOTHING_LISTENS = "nothing listens there"

#: gRPC's text if the peer closes the connection, for any reason.
_CLOSED = "Socket closed"
#: These texts of gRPC mean that the connection broke during a call.
_BROKEN_MARKS = (
    _CLOSED,
    "Stream removed",
    "recvmsg:",
    "sendmsg:",
    "Connection reset",
    "Broken pipe",
    "Handshake read failed",
)
CONNECTION_BROKE = "the connection broke"
#: gRPC reports this, and not the status, if a stream ends before the client writes to it.
_STATUS_LOST = "Internal error from Core"

#: Why a peer closes each connection, as a probe with TLS has found out.
WANTS_TLS = (
    "it uses TLS, and this client has no credentials: give the credentials of a user (credentials=, --credentials, "
    "MINIMQ_CREDENTIALS)"
)
WANTS_CERTIFICATE = (
    "it requires a certificate, and these credentials have none: `minimq secure issue DIR USER` makes one"
)

#: Texts of gRPC for a failed connection attempt, each with our explanation.
_NO_CONNECTION = (
    ("WRONG_VERSION_NUMBER", "it speaks no TLS: leave the credentials out, or start it with --secrets DIR"),
    ("certificate has expired", "its certificate has expired: `minimq secure renew` makes a new one"),
    ("certificate is not yet valid", "its certificate is not valid yet: compare the clocks of both machines"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "its certificate is not signed by a CA that is trusted here: these are not the credentials of its cluster",
    ),
    (
        "Hostname Verification Check failed",
        "its certificate is not for this address: call it by a name that `minimq secure describe` lists, or renew the "
        "certificate with this one (`minimq secure renew DIR --host NAME`)",
    ),
    # All that a client without TLS sees of a server with TLS, or a client without a certificate of one that wants it.
    (
        _CLOSED,
        "it closed the connection: if it wants TLS or a certificate, give the credentials of a user (credentials=, "
        "--credentials, MINIMQ_CREDENTIALS), or new ones if their certificate has expired",
    ),
)


#: Reasons that name a remedy: the peer runs, but the TLS settings of the two ends do not fit together.
NO_TLS_REASONS = frozenset((WANTS_TLS, WANTS_CERTIFICATE, *(said for _, said in _NO_CONNECTION)))

#: Those that no retry can fix.
LASTING_REASONS = NO_TLS_REASONS - {dict(_NO_CONNECTION)[_CLOSED]}

_CODE_KEY = "minimq-code"
_RETRY_KEY = "minimq-retry-after-ms"
#: Limits the retry delay that a server can impose on a client.
_MAX_RETRY_MS = 60_000
_MAX_DIGITS = 18

# For `isinstance`: the exceptions of failed calls, sync and asyncio. `Any`, since the type stubs do not declare the
# first one as an `RpcError`.
_FAILED_CALL: Any = (grpc.Call, grpc.aio.AioRpcError)

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    # Reconnects to a restarted broker at once; gRPC's default backoff grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Finds a server that has moved to another address at once; the default is 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    # Despite its name, the timeout of one connection attempt. A loaded peer needs more than a moment.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Calls fail if the peer's machine is gone and does not answer pings.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Newer releases of gRPC use this instead of `keepalive_timeout_ms`.
    ("grpc.http2.ping_timeout_ms", 10_000),
    # Two clients of one process must not share a connection: closing one would stall the other.
    ("grpc.use_local_subchannel_pool", 1),
    # The address is the peer; a proxy in the environment is for other traffic.
    ("grpc.enable_http_proxy", 0),
)

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    # Otherwise a second server could listen on the same port, and each would get half of the connections.
    ("grpc.so_reuseport", 0),
    # A small compressed message may be gigabytes when it is decompressed. Batches are compressed by their producer.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # A client needs a few streams, and one call per thread.
    ("grpc.max_concurrent_streams", 256),
    # Otherwise gRPC also counts streams that are closed but not freed, and resets calls of clients within the limit.
    ("grpc.http.overload_protection", 0),
    # Calls that wait to be accepted. Above the first number, gRPC cancels random ones: with its default of 1,000, one
    # client could cost all others their calls. A waiting call may hold 80 KB, and its caller is not authenticated yet.
    ("grpc.server.max_pending_requests", 5_000),
    ("grpc.server.max_pending_requests_hard_limit", 7_500),
    # Closes connections of peers that do not answer pings: their machine is gone, or they do not read their socket.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),  # newer releases of gRPC use this, with a default of a minute
    ("grpc.keepalive_permit_without_calls", 1),
    # A connection in its handshake (TLS or HTTP/2) holds memory that no limit counts.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Closes idle connections; the client reconnects for its next call.
    ("grpc.max_connection_idle_ms", 600_000),
)

Options = Sequence[tuple[str, int | str]]

#: Characters of the text of an error in an answer. The text may quote input of any length.
_MAX_ERROR_TEXT = 2_000
_CUT = " ... "

_STATUS_BY_CODE: dict[str, grpc.StatusCode] = {
    errors.InvalidArgument.code: grpc.StatusCode.INVALID_ARGUMENT,
    errors.MessageTooLarge.code: grpc.StatusCode.INVALID_ARGUMENT,
    errors.TopicNotFound.code: grpc.StatusCode.NOT_FOUND,
    errors.TopicUnavailable.code: grpc.StatusCode.NOT_FOUND,
    errors.QueueNotFound.code: grpc.StatusCode.NOT_FOUND,
    errors.TopicExists.code: grpc.StatusCode.ALREADY_EXISTS,
    errors.NoPermission.code: grpc.StatusCode.PERMISSION_DENIED,
    errors.OffsetOutOfRange.code: grpc.StatusCode.OUT_OF_RANGE,
    errors.CorruptBatch.code: grpc.StatusCode.DATA_LOSS,
    errors.CorruptEntry.code: grpc.StatusCode.DATA_LOSS,
    errors.StoreError.code: grpc.StatusCode.DATA_LOSS,
    errors.Fenced.code: grpc.StatusCode.ABORTED,
    errors.HandleExpired.code: grpc.StatusCode.ABORTED,
    errors.GroupConflict.code: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NotAuthenticated.code: grpc.StatusCode.UNAUTHENTICATED,
    errors.AccessDenied.code: grpc.StatusCode.PERMISSION_DENIED,
    errors.BrokerConflict.code: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NotDrained.code: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NotMaster.code: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NotEnoughReplicas.code: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StaleSequence.code: grpc.StatusCode.ABORTED,
    errors.TransactionEnded.code: grpc.StatusCode.ABORTED,
    errors.TransactionExpired.code: grpc.StatusCode.ABORTED,
    errors.StaleTerm.code: grpc.StatusCode.ABORTED,
    errors.TermEnding.code: grpc.StatusCode.ABORTED,
    errors.ReplicaSetChanged.code: grpc.StatusCode.ABORTED,
    errors.NotInSync.code: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SystemBusy.code: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.StoreFull.code: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable.code: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded.code: grpc.StatusCode.DEADLINE_EXCEEDED,
}

_ERROR_BY_STATUS: dict[grpc.StatusCode, type[MinimqError]] = {
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.CANCELLED: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    grpc.StatusCode.UNIMPLEMENTED: errors.Unsupported,
    # From gRPC it means a frame over the limit; a busy minimq server sends a code of its own.
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.MessageTooLarge,
}


# Channels and ports are opened only here; a test checks that.


def open_channel(address: str, trust: Trust | None = None, options: Options = CHANNEL_OPTIONS) -> grpc.Channel:
    """Return a channel to HOST:PORT, which connects at its first use. Thread-safe."""
    if trust is None:
        return grpc.insecure_channel(address, options=options)
    channel = grpc.secure_channel(address, trust.channel_credentials(), options=options)
    return channel if trust.bearer is None else cast("grpc.Channel", KeyedChannel(channel, trust.bearer))


def open_aio_channel(address: str, trust: Trust | None = None, options: Options = CHANNEL_OPTIONS) -> grpc.aio.Channel:
    """Same as `open_channel`, for the running event loop."""
    if trust is None:
        return grpc.aio.insecure_channel(address, options=tuple(options))
    channel = grpc.aio.secure_channel(address, trust.channel_credentials(), options=tuple(options))
    return channel if trust.bearer is None else cast("grpc.aio.Channel", KeyedChannel(channel, trust.bearer))


async def bind(server: grpc.aio.Server, address: str, secrets: ServerSecrets | None = None) -> str:
    """Let a server listen at HOST:PORT. Return that address, with the real port if 0 was given."""
    host, _, port = address.rpartition(":")
    await _probe(host.strip("[]"), int(port), address)
    try:
        bound = (
            server.add_insecure_port(address)
            if secrets is None
            else server.add_secure_port(address, secrets.credentials())
        )
    except RuntimeError:  # another process took the port after `_probe`
        bound = 0
    if not bound:
        unusable = "" if secrets is None else ", or gRPC cannot use tls.crt, tls.key or ca.crt in --secrets"
        raise errors.CannotListen(f"cannot listen at {address}: the port was taken at this moment{unusable}")
    return f"{host}:{bound}"


async def _probe(host: str, port: int, address: str) -> None:
    # Binds a plain socket, because its error names the cause; gRPC only reports that it failed.
    bindable, rejection = False, ""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise errors.CannotListen(f"cannot listen at {address}: {host} is not found: {error.strerror}") from None
    for family, kind, protocol, _, endpoint in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(endpoint)
            bindable = True
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                reason = "the port is in use; stop the process that has it, or choose another port"
                raise errors.CannotListen(f"cannot listen at {address}: {reason}") from None
            rejection = str(error.strerror)
    if not bindable:
        raise errors.CannotListen(f"cannot listen at {address}: {rejection}")


class LiveStream:
    """Context manager around serving a stream in the current task, so that `end` can end it with an error."""

    def __init__(self, streams: set[LiveStream]) -> None:
        self._streams = streams
        self._task = asyncio.current_task()
        self._reason: MinimqError | None = None

    def end(self, reason: MinimqError) -> None:
        """Cancel the task; the `with` block then raises `reason`."""
        assert self._task is not None
        self._reason = reason
        self._task.cancel()

    def __enter__(self) -> Self:
        self._streams.add(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, frames: object) -> None:
        self._streams.discard(self)
        if self._reason is not None and isinstance(error, asyncio.CancelledError):
            raise self._reason from None


def server_options(**changed: int) -> tuple[tuple[str, int], ...]:
    """Return `SERVER_OPTIONS` with some changed: `max_receive_message_length=...`."""
    # Through a dict, because gRPC uses the first of two values for one key.
    return tuple({**dict(SERVER_OPTIONS), **{f"grpc.{name}": value for name, value in changed.items()}}.items())


def address_of(peer: str) -> str:
    """Convert gRPC's "ipv4:127.0.0.1:40000" to "127.0.0.1:40000"."""
    return peer.partition(":")[2].replace("%5B", "[").replace("%5D", "]") or peer


def to_failure(error: BaseException) -> errors_pb2.Failure:
    """Convert an error for an answer; cuts the middle of a text that is too long."""
    if isinstance(error, MinimqError):
        retry_after_ms = round(error.retry_after_s * 1000)
        return errors_pb2.Failure(code=error.code, message=_shortened(error.message), retry_after_ms=retry_after_ms)
    message = _shortened(f"{type(error).__name__}: {error}")
    return errors_pb2.Failure(code=errors.InternalError.code, message=message)


def _shortened(text: str) -> str:
    if len(text) <= _MAX_ERROR_TEXT:
        return text
    half = (_MAX_ERROR_TEXT - len(_CUT)) // 2
    return text[:half] + _CUT + text[-half:]


def from_failure(failure: errors_pb2.Failure) -> MinimqError:
    return _make(failure.code, failure.message, failure.retry_after_ms)


async def write(context: Any, message: bytes) -> None:
    """Write an encoded message to a stream of a server. Raises `CancelledError` if the stream has ended."""
    try:
        await context.write(message)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: BaseException) -> NoReturn:
    """End a call on the server with an error, which `from_rpc_error` restores at the client."""
    failure = to_failure(error)
    status = _STATUS_BY_CODE.get(failure.code, grpc.StatusCode.INTERNAL)
    metadata = ((_CODE_KEY, failure.code), (_RETRY_KEY, str(failure.retry_after_ms)))
    await context.abort(status, failure.message, metadata)
    raise AssertionError("unreachable: abort raises")


def status_of(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    """Return the status of a failed call and its details; UNKNOWN if the call was not made."""
    if not isinstance(error, _FAILED_CALL):
        return grpc.StatusCode.UNKNOWN, str(error)
    return error.code(), error.details() or ""


def from_rpc_error(error: grpc.RpcError, peer: str) -> MinimqError:
    if not isinstance(error, _FAILED_CALL):
        return errors.Unavailable(f"{peer}: the call was not made: {error}")
    metadata = dict(iter(error.trailing_metadata() or ()))  # `iter`: in grpcio 1.66 it is a mapping with pairs as keys
    details = error.details() or ""
    if _CODE_KEY in metadata:
        return _make(str(metadata[_CODE_KEY]), details, _whole(str(metadata.get(_RETRY_KEY))))
    if by_proxy := proxy_error(error.code(), details, peer):
        return by_proxy
    cls = _ERROR_BY_STATUS.get(error.code(), errors.InternalError)
    text = f"{peer}: {error.code().name.lower()}: {details}"
    if cls is errors.Unavailable:
        text = f"{peer} is not reached: {why_unreached(details)}"
    elif cls is errors.DeadlineExceeded:
        text = f"{peer} has not answered in time"
    elif error.code() is grpc.StatusCode.UNIMPLEMENTED:
        text = f"{peer} does not know this call: a server of another kind has this address, or one without this feature"
        text = f"{text} ({details})"
    elif details == _STATUS_LOST:
        text = f"{peer} ended the call at once: a server of another kind may have this address"
    return cls(text)


def why_unreached(details: str) -> str:
    """Translate gRPC's details about an unreachable peer for users."""
    if "Connection refused" in details:
        return NOTHING_LISTENS
    if "DNS" in details or "resol" in details:
        return "the host is not found"
    if "before receiving SETTINGS frame" in details:  # the kernel accepted the connection, the process does not answer
        return "it does not answer"
    connected, _, reason = details.rpartition("last error: ")
    if connected:  # "last error:" means that no attempt succeeded
        known = next((said for mark, said in _NO_CONNECTION if mark in reason), None)
        if known is not None:
            return known
    return CONNECTION_BROKE if any(mark in reason for mark in _BROKEN_MARKS) else reason


def was_closed(details: str) -> bool:
    """Return whether the peer closed the connection, according to gRPC's details."""
    return _CLOSED in details.rpartition("last error: ")[2]


def _make(code: str, message: str, retry_after_ms: int) -> MinimqError:
    cls = errors.BY_CODE.get(code, errors.InternalError)
    if issubclass(cls, errors.SendFailed):  # its constructor needs the attempts, which are not sent
        cls = errors.InternalError
    return cls(message, retry_after_s=min(max(retry_after_ms, 0), _MAX_RETRY_MS) / 1000)


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else 0


#: The metadata key of a user's key, and the prefix of its value.
HEADER, SCHEME = "authorization", "Bearer "
_CALLS = {"unary_unary", "unary_stream", "stream_unary", "stream_stream"}


class _KeyedCall:
    """Adds a key to the metadata of a call. Unlike `functools.partial`, its repr does not show the key."""

    __slots__ = ("_call", "_metadata")

    def __init__(self, call: Any, metadata: Any) -> None:
        self._call = call
        self._metadata = metadata

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._call(*args, **{"metadata": self._metadata, **named})


class KeyedChannel:
    """Wraps a channel, sync or asyncio, so that its calls carry a key.

    Costs only at the start of a call: an interceptor would handle each message, an auth plugin start a thread per call.
    """

    def __init__(self, channel: Any, key: UserKey) -> None:
        self._channel = channel
        self._metadata = ((HEADER, f"{SCHEME}{key.text}"),)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._channel, name)
        return (lambda *args, **named: _KeyedCall(found(*args, **named), self._metadata)) if name in _CALLS else found

    def __enter__(self) -> Self:
        self._channel.__enter__()
        return self

    def __exit__(self, *error: object) -> Any:
        return self._channel.__exit__(*error)

    async def __aenter__(self) -> Self:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._channel.__aexit__(*error)


#: Bytes fields from this size on are encoded by hand and joined with the rest of the message: protobuf reallocates
#: its buffer as it grows, which takes over a millisecond for 1 MiB.
LARGE_BYTES = 16 << 10
_LENGTH_DELIMITED = 2


def field_head(number: int, size: int) -> bytes:
    """Encode the tag and the length that precede a field of bytes or of a message."""
    head = bytearray()
    for value in (number << 3 | _LENGTH_DELIMITED, size):
        rest = value
        while rest > 0x7F:
            head.append(rest & 0x7F | 0x80)
            rest >>= 7
        head.append(rest)
    return bytes(head)
