"""gRPC plumbing that all roles share: channels, server options, and the one table between errors and statuses."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

import grpc
import grpc.aio

from minimq_common import errors
from minimq_common.errors import MiniMQError
from minimq_common.wire.protocol_bounds import MAX_FRAME_BYTES
from minimq_proto.v1 import errors_pb2

if TYPE_CHECKING:
    from minimq_common.security.certificates import Trust
    from minimq_common.security.server_secrets import ServerSecrets
    from minimq_common.security.tokens import UserToken
    from minimq_common.security.user_key import UserKey

#: Why a peer is not reached on whose host no process has the port.
NOTHING_LISTENS = "nothing listens there"

#: Of a peer that closes the connection, which it may do for several reasons.
_CLOSED = "Socket closed"
#: Marks of a connection that ended in the middle of a call, in what gRPC says, and how that is told.
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

#: Why it closes connections, as its answer to others shows.
WANTS_TLS = (
    "it uses TLS, and this client has no credentials: give the credentials of a user (credentials=, --credentials, "
    "MINIMQ_CREDENTIALS)"
)
WANTS_CERTIFICATE = (
    "it requires a certificate, and these credentials have none: `minimq secure issue DIR USER` makes one"
)

#: Why no connection was made, by what gRPC says of it.
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
        "its certificate is not for this address: call it by a name that `minimq secure show` lists, or renew the "
        "certificate with this one (`minimq secure renew DIR --host NAME`)",
    ),
    # All that a client sees of a server that speaks TLS when it does not, or that wants a certificate.
    (
        _CLOSED,
        "it closed the connection: if it wants TLS or a certificate, give the credentials of a user (credentials=, "
        "--credentials, MINIMQ_CREDENTIALS), or new ones if their certificate has expired",
    ),
)


#: The reasons that name a remedy: the peer runs, but its end of the connection is not what it is here.
NO_TLS_REASONS = frozenset((WANTS_TLS, WANTS_CERTIFICATE, *(said for _, said in _NO_CONNECTION)))

#: Those of them that time does not mend.
LASTING_REASONS = NO_TLS_REASONS - {dict(_NO_CONNECTION)[_CLOSED]}


_CODE_KEY = "minimq-code"
_RETRY_KEY = "minimq-retry-after-ms"
#: No server makes a client wait for longer, whatever it says.
_LONGEST_RETRY_MS = 60_000
_MOST_DIGITS = 18

# What gRPC raises when a call has failed, plain and on an event loop, for `isinstance`. (The stubs do not know that the
# first one is an `RpcError` too, hence no type.)
_FAILED_CALL: Any = (grpc.Call, grpc.aio.AioRpcError)

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    # A broker that came back is found at once rather than after gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A server that comes back at another address, under its name, is found at once; by default after up to 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    # Despite its name, the time that one attempt to connect may take: a loaded peer needs more than a moment.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # A peer whose machine has gone says nothing: without an answer to a ping its calls fail.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Newer releases of gRPC wait for the answer by this option instead.
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
    # Two servers on one port would each get half of the connections.
    ("grpc.so_reuseport", 0),
    # A client has a few streams, and as many calls at once as it has threads.
    ("grpc.max_concurrent_streams", 256),
    # Without that, gRPC also counts streams that are closed but not freed, and resets calls of a client that keeps the
    # limit.
    ("grpc.http.overload_protection", 0),
    # Calls that have come and wait to be taken up. Beyond the first number, gRPC cancels some of them by lot, whoever
    # made them: a thousand of one client, by default, would cost others theirs. Each may hold 80 KB, without a key.
    ("grpc.server.max_pending_requests", 5_000),
    ("grpc.server.max_pending_requests_hard_limit", 7_500),
    # A peer whose machine has gone, or that does not even read from its socket, says nothing: it is let go.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),  # by which newer releases of gRPC go; else they wait for a minute
    ("grpc.keepalive_permit_without_calls", 1),
    # A connection whose handshake is not completed, of TLS or of HTTP/2, holds memory that nobody counts.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # One without a call is of no use; a client that has something to ask connects again.
    ("grpc.max_connection_idle_ms", 600_000),
)

Options = Sequence[tuple[str, int | str]]

#: Longest text of an error that travels. A text may quote what came, and would be as long.
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
    errors.AccessConflict.code: grpc.StatusCode.FAILED_PRECONDITION,
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

_ERROR_BY_STATUS: dict[grpc.StatusCode, type[MiniMQError]] = {
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.CANCELLED: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    grpc.StatusCode.UNIMPLEMENTED: errors.InvalidArgument,
    # gRPC's own word for a frame over its limit; a server of ours that is busy says so by its code.
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.MessageTooLarge,
}


# Channels and ports are opened here and nowhere else: a test looks for others.


def open_channel(address: str, trust: Trust | None = None, options: Options = CHANNEL_OPTIONS) -> grpc.Channel:
    """Return a channel to HOST:PORT; it connects when first used. Safe to share between threads."""
    if trust is None:
        return grpc.insecure_channel(address, options=options)
    channel = grpc.secure_channel(address, trust.channel_credentials(), options=options)
    return channel if trust.bearer is None else cast("grpc.Channel", KeyedChannel(channel, trust.bearer))


def open_aio_channel(address: str, trust: Trust | None = None, options: Options = CHANNEL_OPTIONS) -> grpc.aio.Channel:
    """Do as `open_channel` for the running event loop."""
    if trust is None:
        return grpc.aio.insecure_channel(address, options=tuple(options))
    channel = grpc.aio.secure_channel(address, trust.channel_credentials(), options=tuple(options))
    return channel if trust.bearer is None else cast("grpc.aio.Channel", KeyedChannel(channel, trust.bearer))


async def bind(server: grpc.aio.Server, address: str, secrets: ServerSecrets | None = None) -> str:
    """Let a server listen at HOST:PORT, and return that address with the real port in place of 0."""
    host, _, port = address.rpartition(":")
    await _probe(host.strip("[]"), int(port), address)
    try:
        bound = (
            server.add_insecure_port(address)
            if secrets is None
            else server.add_secure_port(address, secrets.credentials())
        )
    except RuntimeError:  # somebody else was quicker
        bound = 0
    if not bound:
        raise errors.CannotListen(f"cannot listen at {address}: the port was taken at this moment")
    return f"{host}:{bound}"


async def _probe(host: str, port: int, address: str) -> None:
    # gRPC says only that it failed, in several lines of its own log: a plain socket knows why.
    bindable, refusal = False, ""
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
            refusal = str(error.strerror)
    if not bindable:
        raise errors.CannotListen(f"cannot listen at {address}: {refusal}")


class LiveStream:
    """The stream that the present task serves, while the block lasts; it may be ended with an error for its client."""

    def __init__(self, streams: set[LiveStream]) -> None:
        self._streams = streams
        self._task = asyncio.current_task()
        self._reason: MiniMQError | None = None

    def end(self, reason: MiniMQError) -> None:
        """Cancel its task, and have the block raise the reason."""
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
    """Return the options of a server, of which some are others: `max_receive_message_length=...`."""
    # A dict, since of two values for one key gRPC takes the first one.
    return tuple({**dict(SERVER_OPTIONS), **{f"grpc.{name}": value for name, value in changed.items()}}.items())


def address_of(peer: str) -> str:
    """Return the address of a client: "127.0.0.1:40000", where gRPC has "ipv4:127.0.0.1:40000"."""
    return peer.partition(":")[2].replace("%5B", "[").replace("%5D", "]") or peer


def to_failure(error: BaseException) -> errors_pb2.Failure:
    """Return an error as it travels inside an answer: a text that is too long has lost its middle."""
    if isinstance(error, MiniMQError):
        retry_after_ms = round(error.retry_after_s * 1000)
        return errors_pb2.Failure(code=error.code, message=_shortened(error.message), retry_after_ms=retry_after_ms)
    message = _shortened(f"{type(error).__name__}: {error}")
    return errors_pb2.Failure(code=errors.InternalError.code, message=message)


def _shortened(text: str) -> str:
    if len(text) <= _MAX_ERROR_TEXT:
        return text
    half = (_MAX_ERROR_TEXT - len(_CUT)) // 2
    return text[:half] + _CUT + text[-half:]


def from_failure(failure: errors_pb2.Failure) -> MiniMQError:
    """Return the error that a failure stands for."""
    return _make(failure.code, failure.message, failure.retry_after_ms)


async def write(context: Any, message: object) -> None:
    """Write a message to a stream of a server."""
    try:
        await context.write(message)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: BaseException) -> NoReturn:
    """End a call on the server with an error that `from_rpc_error` turns back into itself."""
    failure = to_failure(error)
    status = _STATUS_BY_CODE.get(failure.code, grpc.StatusCode.INTERNAL)
    metadata = ((_CODE_KEY, failure.code), (_RETRY_KEY, str(failure.retry_after_ms)))
    await context.abort(status, failure.message, metadata)
    raise AssertionError("unreachable: abort raises")


def status_of(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    """Return the status of a failed call and what was said about it; UNKNOWN when the call was not even made."""
    if not isinstance(error, _FAILED_CALL):
        return grpc.StatusCode.UNKNOWN, str(error)
    return error.code(), error.details() or ""


def from_rpc_error(error: grpc.RpcError, peer: str) -> MiniMQError:
    """Return what a failed call means."""
    if not isinstance(error, _FAILED_CALL):
        return errors.Unavailable(f"{peer}: the call was not made: {error}")
    metadata = dict(iter(error.trailing_metadata() or ()))  # grpcio 1.66 has mappings whose keys are pairs
    details = error.details() or ""
    if _CODE_KEY in metadata:
        return _make(str(metadata[_CODE_KEY]), details, _whole(str(metadata.get(_RETRY_KEY))))
    cls = _ERROR_BY_STATUS.get(error.code(), errors.InternalError)
    if cls is errors.Unavailable:
        return cls(f"{peer} is not reached: {why_unreached(details)}")
    if cls is errors.DeadlineExceeded:
        return cls(f"{peer} has not answered in time")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return cls(
            f"{peer} does not know this call: it is of an older release, or a server of another kind has this address"
        )
    return cls(f"{peer}: {error.code().name.lower()}: {details}")


def why_unreached(details: str) -> str:
    """Return what gRPC says of a peer that is not reached, in words for people."""
    if "Connection refused" in details:
        return NOTHING_LISTENS
    if "DNS" in details or "resol" in details:
        return "the host is not found"
    if "before receiving SETTINGS frame" in details:  # its machine has taken the connection
        return "it does not answer"
    connected, _, reason = details.rpartition("last error: ")
    if connected:  # none was made
        known = next((said for mark, said in _NO_CONNECTION if mark in reason), None)
        if known is not None:
            return known
    return CONNECTION_BROKE if any(mark in reason for mark in _BROKEN_MARKS) else reason


def was_closed(details: str) -> bool:
    """Return whether gRPC says of a peer that it has closed the connection, which may have several reasons."""
    return _CLOSED in details.rpartition("last error: ")[2]


def _make(code: str, message: str, retry_after_ms: int) -> MiniMQError:
    cls = errors.BY_CODE.get(code, errors.InternalError)
    if issubclass(cls, errors.SendFailed):  # its text is made of tries, which do not travel
        cls = errors.InternalError
    return cls(message, retry_after_s=min(max(retry_after_ms, 0), _LONGEST_RETRY_MS) / 1000)


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else 0


#: Where a key stands among the metadata of a call, and what stands before it.
HEADER, SCHEME = "authorization", "Bearer "
_CALLS = {"unary_unary", "unary_stream", "stream_unary", "stream_stream"}


class _KeyedCall:
    """A call of gRPC that carries a key, and does not show it, as a `functools.partial` would."""

    __slots__ = ("_call", "_metadata")

    def __init__(self, call: Any, metadata: Any) -> None:
        self._call = call
        self._metadata = metadata

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._call(*args, **{"metadata": self._metadata, **named})


class KeyedChannel:
    """A channel of gRPC, plain or of asyncio, whose calls carry a key.

    An interceptor of gRPC would stand between each message and its stream, and its plugins for keys begin a thread with
    each call; this adds to the beginning of a call alone.
    """

    def __init__(self, channel: Any, key: UserKey | UserToken) -> None:
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


#: With this many bytes and more it pays to encode with protobuf only what stands around them, and to join: protobuf
#: moves its buffer whenever that is too small, which takes a millisecond and more for 1 MiB.
LARGE_BYTES = 16 << 10
_LENGTH_DELIMITED = 2


def field_head(number: int, size: int) -> bytes:
    """Return what stands ahead of the content of a field that holds bytes, or a message."""
    head = bytearray()
    for value in (number << 3 | _LENGTH_DELIMITED, size):
        rest = value
        while rest > 0x7F:
            head.append(rest & 0x7F | 0x80)
            rest >>= 7
        head.append(rest)
    return bytes(head)


#: glibc adds to a block what it needs itself, and does not learn from more than 32 MiB.
_BLOCK_BYTES = 31 << 20


def keep_freed_memory() -> None:
    """Let this process use freed memory again, up to about 62 MiB of it, instead of returning it to the system.

    glibc returns blocks that are larger than the largest one freed so far, and the next one comes page by page, each of
    them cleared first: for frames of 1 MiB that costs more than all that is done with them. So one is freed here.
    """
    bytes(_BLOCK_BYTES)
