"""The errors of minimq: one tree, and what to do about each error written on its class.

    MiniMQError
    ├── UsageError              the caller did something that cannot work; trying again will not help
    │   ├── InvalidArgument         ├── MessageTooLarge
    │   └── Closed
    ├── ServerError             a broker or a name server refused
    │   ├── TopicNotFound           ├── TopicExists         ├── QueueNotFound     ├── NoPermission
    │   ├── OffsetOutOfRange        ├── CorruptBatch        ├── Fenced            ├── GroupConflict
    │   ├── SystemBusy              ├── StoreFull           ├── BrokerConflict    ├── InternalError
    │   ├── NotDrained              ├── StaleSequence       ├── GroupNotFound     ├── NotMaster
    │   ├── NotEnoughReplicas       ├── TransactionEnded    ├── TransactionExpired
    │   ├── StaleTerm               ├── TermEnding          ├── ReplicaSetChanged ├── NotInSync
    │   ├── AccessConflict          ├── NotAuthenticated    ├── AccessDenied
    │   └── TopicUnavailable        └── HandleExpired
    ├── TransportError          no answer came
    │   ├── Unavailable             └── DeadlineExceeded
    ├── SendFailed              all tries of a send failed; lists each of them
    ├── BufferFull              too much is waiting to be sent
    ├── CannotListen            a server cannot have the address it was told to serve at
    └── StoreError              a data directory cannot be used
        ├── DataDirectoryInUse      ├── DataDirectoryVersion  ├── CorruptEntry
        ├── CopyNeeded              └── CopyInterrupted

What a client does after an error stands on its class, in marks; the retry loop reads them and never lists
classes. No mark at all: the call fails at once.

    mark            what a producer does                                       on
    retriable       tries again, elsewhere if it may                           TransportError, NoPermission, SystemBusy,
                                                                               StoreFull, InternalError, NotDrained,
                                                                               BrokerConflict, BufferFull,
                                                                               NotMaster, NotEnoughReplicas,
                                                                               TopicUnavailable
    refresh_route   asks for the route first; a batch that may go to any       TransportError, NoPermission, NotMaster,
                    queue then tries another                                   TopicNotFound, QueueNotFound,
                                                                               TopicUnavailable
    avoid_broker    sends to other brokers for a while                         TransportError, SystemBusy, StoreFull,
                                                                               InternalError, NotEnoughReplicas
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    from minimq_common.model import AwayBroker


class MiniMQError(Exception):
    """Anything that minimq raises on purpose. The text names the cause and, where there is one, the remedy."""

    #: Stable name that travels between processes.
    code: ClassVar[str] = "UNKNOWN"
    #: The same call may succeed later or elsewhere.
    retriable: ClassVar[bool] = False
    #: What the client believes about the topic's route is probably out of date.
    refresh_route: ClassVar[bool] = False
    #: Something is wrong with the broker itself, so that others are the better choice for a while.
    avoid_broker: ClassVar[bool] = False
    #: Whether the server said something; if not, it is worth asking whether it is there again.
    answered: ClassVar[bool] = True

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        #: Seconds the server asks the caller to wait before the next try; 0 when it has no opinion.
        self.retry_after_s = retry_after_s

    @property
    def message(self) -> str:
        """The text of the error, without its code."""
        return str(self.args[0])

    def with_message(self, message: str) -> Self:
        """Return the same error, with everything that it carries, under another text."""
        error = copy.copy(self)
        error.args = (message,)
        return error


class UsageError(MiniMQError):
    """The caller did something that cannot work; trying again will not help."""

    code = "USAGE"


class InvalidArgument(UsageError):
    """A name, a number or a message breaks a rule that the text names."""

    code = "INVALID_ARGUMENT"


class MessageTooLarge(InvalidArgument):
    """A message body is over the limit of the producer or of the broker."""

    code = "MESSAGE_TOO_LARGE"


class Closed(UsageError):
    """The producer, the consumer or the admin client was closed before the call, or was made before a fork."""

    code = "CLOSED"


class ServerError(MiniMQError):
    """A broker or a name server refused."""

    code = "SERVER"


class TopicNotFound(ServerError):
    """No broker carries the topic, or the broker that was asked does not."""

    code = "TOPIC_NOT_FOUND"
    refresh_route = True

    @classmethod
    def nowhere(cls, topic: str) -> Self:
        """Return the error for a topic of which none of the servers that run knows."""
        from minimq_common.names import DEAD_LETTER_PREFIX, RETRY_PREFIX  # noqa: PLC0415 - it has errors of this module

        if topic.startswith((DEAD_LETTER_PREFIX, RETRY_PREFIX)):
            first = "gives up" if topic.startswith(DEAD_LETTER_PREFIX) else "tries again"
            return cls(
                f"topic {topic} is on no broker: its group makes it with the first message that it {first}, so there "
                "is none yet, unless the broker that carries it does not run"
            )
        return cls(
            f"topic {topic} is on no broker: create it with `minimq topic create {topic}`, or, if it exists, "
            "start the broker that carries it"
        )


class TopicUnavailable(ServerError):
    """All brokers that carry the topic are away, or no broker is registered at all.

    `away` holds those that are known to carry it.
    """

    code = "TOPIC_UNAVAILABLE"
    retriable = True
    refresh_route = True

    def __init__(self, message: str, *, retry_after_s: float = 0.0, away: Sequence[AwayBroker] = ()) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.away = tuple(away)


class TopicExists(ServerError):
    """A topic of that name is there already, with other settings."""

    code = "TOPIC_EXISTS"


class QueueNotFound(ServerError):
    """The topic has fewer queues on that broker."""

    code = "QUEUE_NOT_FOUND"
    refresh_route = True


class NoPermission(ServerError):
    """The topic or the broker does not allow reading or writing just now."""

    code = "NO_PERMISSION"
    retriable = True
    refresh_route = True


class NotDrained(ServerError):
    """Queues cannot be hidden yet: a group has not read all of their messages. The text names groups and queues."""

    code = "NOT_DRAINED"
    retriable = True


class OffsetOutOfRange(ServerError):
    """The offset is not stored: it was deleted, or is not written yet. The text says the valid range."""

    code = "OFFSET_OUT_OF_RANGE"


class CorruptBatch(ServerError):
    """The bytes of a batch do not match their checksum."""

    code = "CORRUPT_BATCH"


class StaleSequence(ServerError):
    """A batch has a number that its producer has settled: it may be stored already, and the broker knows no more."""

    code = "STALE_SEQUENCE"


class Fenced(ServerError):
    """The lease under which the call was made is over: another member may own the queue."""

    code = "FENCED"


class HandleExpired(ServerError):
    """Messages cannot be settled by their receipt handles any more: they were handed out again, or are gone.

    `handles` are those handles, as text. All others that were given at once are settled.
    """

    code = "HANDLE_EXPIRED"

    def __init__(self, message: str, handles: Sequence[str] = (), *, retry_after_s: float = 0.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.handles = tuple(handles)


class GroupConflict(ServerError):
    """A member contradicts its group: the same client id twice, or another allocation strategy."""

    code = "GROUP_CONFLICT"


class GroupNotFound(ServerError):
    """No broker has heard of the consumer group."""

    code = "GROUP_NOT_FOUND"


class NotAuthenticated(ServerError):
    """The server does not know who calls: there was no key, or one that is not in force. The text says why."""

    code = "NOT_AUTHENTICATED"


class AccessDenied(ServerError):
    """The user has no right to do that. The text names the right, and the command that gives it."""

    code = "ACCESS_DENIED"


class AccessConflict(ServerError):
    """Users and rules have changed since they were looked at."""

    code = "ACCESS_CONFLICT"


class BrokerConflict(ServerError):
    """Another broker has the name and id, or the address, under which this one registers."""

    code = "BROKER_CONFLICT"
    retriable = True


class StaleTerm(ServerError):
    """A replica acted as the master of a term that is over."""

    code = "STALE_TERM"


class TermEnding(ServerError):
    """The lease of a master is not renewed: another replica was promoted and waits for its end."""

    code = "TERM_ENDING"


class ReplicaSetChanged(ServerError):
    """The record of a replica set is not what the caller knew: it may look at it and try again."""

    code = "REPLICA_SET_CHANGED"


class NotInSync(ServerError):
    """A replica is not promoted, since it may lack messages that were acknowledged."""

    code = "NOT_IN_SYNC"


class SystemBusy(ServerError):
    """The server has more to do than it may hold; it says after which time to try again."""

    code = "SYSTEM_BUSY"
    retriable = True
    avoid_broker = True

    def __init__(self, message: str, *, retry_after_s: float = 0.0, limit: str = "") -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        #: The limit that was reached, for the metrics of the server; it does not travel.
        self.limit = limit


class StoreFull(ServerError):
    """The disk of the broker is full; it goes on serving reads."""

    code = "STORE_FULL"
    retriable = True
    avoid_broker = True


class NotMaster(ServerError):
    """The broker is not the master of its replica set, or not any more: only the master writes."""

    code = "NOT_MASTER"
    retriable = True
    refresh_route = True


class NotEnoughReplicas(ServerError):
    """Too few replicas have what was written, or are there to have it: it may be stored, and is not safe."""

    code = "NOT_ENOUGH_REPLICAS"
    retriable = True
    avoid_broker = True


class TransactionEnded(ServerError):
    """A transaction with this number, or a later one of its name, is decided: a later writer has finished it."""

    code = "TRANSACTION_ENDED"


class TransactionExpired(ServerError):
    """A broker has dropped staged batches, so that their transaction cannot be committed any more."""

    code = "TRANSACTION_EXPIRED"


class InternalError(ServerError):
    """The server failed in a way that it did not foresee; its log says more."""

    code = "INTERNAL"
    retriable = True
    avoid_broker = True


class TransportError(MiniMQError):
    """No answer came."""

    code = "TRANSPORT"
    retriable = True
    refresh_route = True
    avoid_broker = True
    answered = False


class Unavailable(TransportError):
    """The server is not reached, or the connection broke before the answer."""

    code = "UNAVAILABLE"


class DeadlineExceeded(TransportError):
    """The answer did not come in time."""

    code = "DEADLINE_EXCEEDED"


class BufferFull(MiniMQError):
    """More messages wait to be sent than the producer may hold."""

    code = "BUFFER_FULL"
    retriable = True


class SendFailed(MiniMQError):
    """All tries of a send failed.

    `tries` holds the text of each try in order: where it went, after how long it failed, and why.
    """

    code = "SEND_FAILED"

    def __init__(self, message: str, tries: tuple[str, ...] = ()) -> None:
        super().__init__("\n  ".join((message, *tries)))
        self.tries = tries


class CannotListen(MiniMQError):
    """A server cannot have the address it was told to serve at: it is taken, or not this machine's."""

    code = "CANNOT_LISTEN"


class StoreError(MiniMQError):
    """A data directory cannot be used."""

    code = "STORE"


class DataDirectoryInUse(StoreError):
    """Another process has the data directory open."""

    code = "DATA_DIRECTORY_IN_USE"


class DataDirectoryVersion(StoreError):
    """The data directory was written by another version of the format."""

    code = "DATA_DIRECTORY_VERSION"


class CorruptEntry(StoreError):
    """An entry of the CommitLog does not match its checksum; the text names its position."""

    code = "CORRUPT_ENTRY"


class CopyNeeded(StoreError):
    """A log cannot be made to go on like another one: everything has to be copied anew."""

    code = "COPY_NEEDED"


class CopyInterrupted(StoreError):
    """The data directory holds a part of a copy, which did not come to its end."""

    code = "COPY_INTERRUPTED"


def _tree(base: type[MiniMQError]) -> list[type[MiniMQError]]:
    return [base, *(leaf for child in base.__subclasses__() for leaf in _tree(child))]


#: Every error class by its code.
BY_CODE: dict[str, type[MiniMQError]] = {cls.code: cls for cls in _tree(MiniMQError)}
