"""The errors of minimq, in one class tree.

A `UsageError` means an invalid use, a `ServerError` that a server rejected a request, a `TransportError` that no answer
arrived. Class attributes such as `retriable` define how a client reacts. The retry loop reads only these attributes,
never the class, and gives up at once if none is set.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from minimq_common.redaction import without_secrets

if TYPE_CHECKING:
    from minimq_common.places import MessageQueue, OfflineBroker

#: Minimum seconds between two attempts of a caller that is rejected until an administrator grants access.
_REJECTED_RETRY_S = 3.0


class MinimqError(Exception):
    """The base class of all errors of minimq. The text names the cause and, if there is one, the remedy."""

    #: Stable name of the class, sent between processes.
    code: ClassVar[str] = "UNKNOWN"
    #: The same call may succeed later or elsewhere.
    retriable: ClassVar[bool] = False
    #: The client's copy of the route is probably out of date.
    refresh_route: ClassVar[bool] = False
    #: The broker has a problem; clients prefer other brokers for a while.
    avoid_broker: ClassVar[bool] = False
    #: The server answered. If not, clients probe it until it answers again.
    answered: ClassVar[bool] = True
    #: False if the request has certainly not left this process.
    was_sent: bool = True
    #: Default of `retry_after_s`.
    retry_s: ClassVar[float] = 0.0

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(without_secrets(message))
        #: Seconds that the server asks the caller to wait before a retry; 0 if it suggests no delay.
        self.retry_after_s = self.retry_s if retry_after_s is None else retry_after_s
        self._waited = ""

    def __str__(self) -> str:
        return self.message

    @property
    def message(self) -> str:
        """The text of the error, without its code."""
        return f"{self.args[0]}{self._waited}"

    def with_message(self, message: str) -> Self:
        """Return a copy of the error with another text. The new text may contain the old one."""
        error = copy.copy(self)
        own = message.replace(self._waited, "") if self._waited else message
        error.args, error._waited = (without_secrets(own),), "" if own == message else self._waited
        return error

    def after_waiting(self, waited: str) -> Self:
        """Return a copy whose text ends with how long the client waited; replaces a former such note."""
        error = copy.copy(self)
        error._waited = f" (waited {waited})"
        return error


class UsageError(MinimqError):
    """An invalid use of the interface; a retry will not help."""

    code = "USAGE"


class InvalidArgument(UsageError):
    """A name, a number or a message violates a rule that the text names."""

    code = "INVALID_ARGUMENT"


class MessageTooLarge(InvalidArgument):
    """A message body is over the limit of the producer or of the broker."""

    code = "MESSAGE_TOO_LARGE"


class Unsupported(InvalidArgument):
    """The server does not have the call or the feature: it was built without it, or is a server of another kind."""

    code = "UNSUPPORTED"


class Closed(UsageError):
    """The client was closed before the call, or was created before a fork."""

    code = "CLOSED"


class ServerError(MinimqError):
    """A broker or a name server rejected the request."""

    code = "SERVER"


class TopicNotFound(ServerError):
    """No broker carries the topic, or the called broker does not carry it."""

    code = "TOPIC_NOT_FOUND"
    refresh_route = True

    @classmethod
    def nowhere(cls, topic: str) -> Self:
        """Return the error for a topic that no running server knows."""
        if topic.startswith("%"):
            return cls(
                f"topic {topic} is on no broker: it is created with its first message, so it does not exist yet, "
                "unless the broker that carries it does not run"
            )
        return cls(
            f"topic {topic} is on no broker: create it with `minimq topic create {topic}`, or, if it exists, "
            "start the broker that carries it"
        )


class TopicRecreated(TopicNotFound):
    """The topic was deleted and created again, so offsets that were looked up before belong to other messages."""

    code = "TOPIC_RECREATED"

    @classmethod
    def of(cls, topic: str) -> Self:
        """Return the error for a read whose offsets belong to the deleted topic."""
        return cls(f"topic {topic} was deleted and created again since this read was planned")


class TopicUnavailable(ServerError):
    """All brokers that carry the topic are offline, or no broker is registered at all.

    `offline` lists the brokers that are known to carry it.
    """

    code = "TOPIC_UNAVAILABLE"
    retriable = True
    refresh_route = True

    def __init__(self, message: str, *, retry_after_s: float = 0.0, offline: Sequence[OfflineBroker] = ()) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.offline = tuple(offline)


class TopicExists(ServerError):
    """A topic of that name already exists, with other settings."""

    code = "TOPIC_EXISTS"


class QueueNotFound(ServerError):
    """The topic has fewer queues on that broker."""

    code = "QUEUE_NOT_FOUND"
    refresh_route = True


class NoPermission(ServerError):
    """The topic or the broker currently does not allow reading or writing."""

    code = "NO_PERMISSION"
    retriable = True
    refresh_route = True


class NotDrained(ServerError):
    """Queues cannot be hidden yet: a group has not read all of their messages. The text names groups and queues."""

    code = "NOT_DRAINED"
    retriable = True


class OffsetOutOfRange(ServerError):
    """The message at the offset was deleted, or is not written yet. The text names the valid range."""

    code = "OFFSET_OUT_OF_RANGE"


class DamagedMessages(MinimqError):
    """Messages are damaged.

    Attributes:
        queue: queue of the damaged messages; None unless they were read from a queue.
        offset: offset of the first damaged message; None if `queue` is.
        next_offset: offset of the first message after them, where reading can continue; None if unknown.
    """

    code = "DAMAGED_MESSAGES"
    queue: MessageQueue | None = None
    offset: int | None = None

    def __init__(self, message: str, *, retry_after_s: float = 0.0, next_offset: int | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.next_offset = next_offset

    def at(self, queue: MessageQueue, offset: int, next_offset: int | None) -> Self:
        """Set the place of the damaged messages, and return the error."""
        self.queue, self.offset, self.next_offset = queue, offset, next_offset
        return self


class CorruptBatch(DamagedMessages, ServerError):
    """The bytes of a batch do not match their checksum."""

    code = "CORRUPT_BATCH"


class MalformedBody(MinimqError):
    """A body does not match its schema, or names an unknown schema. A retry will not help."""

    code = "MALFORMED_BODY"


class StaleSequence(ServerError):
    """A batch has a sequence number that is in use: by another batch, or the broker no longer remembers by which."""

    code = "STALE_SEQUENCE"


class Fenced(ServerError):
    """The lease of the call has ended: another member may own the queue."""

    code = "FENCED"


class HandleExpired(ServerError):
    """Receipt handles are no longer valid: their messages were redelivered, or are gone.

    `handles` lists these handles as text. All other messages of the call are settled.
    """

    code = "HANDLE_EXPIRED"

    def __init__(self, message: str, handles: Sequence[str] = (), *, retry_after_s: float = 0.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.handles = tuple(handles)


class GroupConflict(ServerError):
    """A member contradicts its group: the same client id twice, or another allocation strategy."""

    code = "GROUP_CONFLICT"


class GroupNotFound(ServerError):
    """No broker knows the consumer group."""

    code = "GROUP_NOT_FOUND"


class NotAuthenticated(ServerError):
    """The server cannot authenticate the caller: the key is missing or not valid. The text names the reason."""

    code = "NOT_AUTHENTICATED"
    retry_s = _REJECTED_RETRY_S


class AccessDenied(ServerError):
    """The user lacks a right. The text names the right, and the command that grants it."""

    code = "ACCESS_DENIED"
    retry_s = _REJECTED_RETRY_S


class BrokerConflict(ServerError):
    """Another broker has the name and id, or the address, under which this one registers."""

    code = "BROKER_CONFLICT"
    retriable = True


class StaleTerm(ServerError):
    """A replica acted as the master of a term that has ended."""

    code = "STALE_TERM"


class TermEnding(ServerError):
    """The lease of a master is not renewed, because another replica was promoted and waits for its end."""

    code = "TERM_ENDING"


class ReplicaSetChanged(ServerError):
    """The record of a replica set has changed: read it again, and retry."""

    code = "REPLICA_SET_CHANGED"


class NotInSync(ServerError):
    """A replica cannot be promoted, because it may lack acknowledged messages."""

    code = "NOT_IN_SYNC"


class SystemBusy(ServerError):
    """The server is at a limit; it suggests a delay before a retry."""

    code = "SYSTEM_BUSY"
    retriable = True
    avoid_broker = True
    retry_s = 0.5

    def __init__(self, message: str, *, retry_after_s: float | None = None, limit: str = "") -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        #: The limit that was reached, for the metrics of the server; not sent to clients.
        self.limit = limit


class StoreFull(ServerError):
    """The broker has reached a full disk, a quota or another limit of the system; it continues to serve reads."""

    code = "STORE_FULL"
    retriable = True
    avoid_broker = True
    retry_s = 1.0


class NotMaster(ServerError):
    """The broker is not the master of its replica set, or not any more; only the master accepts writes."""

    code = "NOT_MASTER"
    retriable = True
    refresh_route = True


class NotEnoughReplicas(ServerError):
    """Too few replicas are in sync, or have confirmed the write. It may be stored, but is not safe."""

    code = "NOT_ENOUGH_REPLICAS"
    retriable = True
    avoid_broker = True


class TransactionEnded(ServerError):
    """The transaction, or a later one of its name, is already decided: a later writer has finished it."""

    code = "TRANSACTION_ENDED"


class TransactionExpired(ServerError):
    """A broker has dropped staged batches, so their transaction cannot be committed any more."""

    code = "TRANSACTION_EXPIRED"


class RejectedByProxy(ServerError):
    """A proxy between client and server answered instead of the server. The text names its HTTP status."""

    code = "REJECTED_BY_PROXY"
    retriable = True


class InternalError(ServerError):
    """The server failed unexpectedly; its log has the details."""

    code = "INTERNAL"
    retriable = True
    avoid_broker = True


class TransportError(MinimqError):
    """No answer arrived."""

    code = "TRANSPORT"
    retriable = True
    refresh_route = True
    avoid_broker = True
    answered = False


class Unavailable(TransportError):
    """The server cannot be reached, or the connection broke before the answer."""

    code = "UNAVAILABLE"


class ConnectionMismatch(Unavailable):
    """All name servers run, but no connection can be made with these credentials, or without any. The text says why."""

    code = "CONNECTION_MISMATCH"
    retriable = False


class DeadlineExceeded(TransportError, TimeoutError):
    """The answer did not arrive in time. `except TimeoutError` catches it, too."""

    code = "DEADLINE_EXCEEDED"


class BufferFull(MinimqError):
    """The send buffer of the producer is full."""

    code = "BUFFER_FULL"
    retriable = True


class SendFailed(MinimqError):
    """Messages of a send were not acknowledged. Those that may be stored may be duplicates if you send them again.

    Attributes:
        attempts: the text of each attempt in order: where it went, after how long it failed, and why.
        stored: number of messages of the same call that were acknowledged.
        may_be_stored: number of messages whose answer was lost.
        not_stored: number of messages that are certainly not stored.
    """

    code = "SEND_FAILED"

    def __init__(
        self,
        message: str,
        attempts: tuple[str, ...] = (),
        *,
        stored: int = 0,
        may_be_stored: int = 0,
        not_stored: int = 0,
    ) -> None:
        super().__init__("\n  ".join((message, *attempts)))
        self.attempts, self.stored, self.may_be_stored, self.not_stored = attempts, stored, may_be_stored, not_stored


class RequestFailed(MinimqError):
    """The service that replied to a request reports an error. The text comes from the reply.

    `body` and `properties` are those of the reply.
    """

    code = "REQUEST_FAILED"

    def __init__(
        self,
        message: str,
        body: bytes = b"",
        properties: Mapping[str, str] | None = None,
        *,
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.body = body
        self.properties = {} if properties is None else properties


class CannotListen(MinimqError):
    """A server cannot listen at its address: the address is in use, or does not belong to this machine."""

    code = "CANNOT_LISTEN"


class StoreError(MinimqError):
    """A data directory cannot be used."""

    code = "STORE"


class DataDirectoryInUse(StoreError):
    """Another process has the data directory open."""

    code = "DATA_DIRECTORY_IN_USE"


class DataDirectoryVersion(StoreError):
    """The data directory, or the log of a master, has a format or a feature that this release lacks."""

    code = "DATA_DIRECTORY_VERSION"


class CorruptEntry(DamagedMessages, StoreError):
    """An entry of the CommitLog does not match its checksum. The text names its position."""

    code = "CORRUPT_ENTRY"


class CopyNeeded(StoreError):
    """The log of a replica cannot continue that of its master, so everything has to be copied again."""

    code = "COPY_NEEDED"


class CopyInterrupted(StoreError):
    """The data directory contains an incomplete copy."""

    code = "COPY_INTERRUPTED"


def _tree(base: type[MinimqError]) -> list[type[MinimqError]]:
    return [base, *(leaf for child in base.__subclasses__() for leaf in _tree(child))]


#: Every error class by its code.
BY_CODE: dict[str, type[MinimqError]] = {cls.code: cls for cls in _tree(MinimqError)}
