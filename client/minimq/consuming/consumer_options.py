"""The options of consumers of queues."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from minimq.arguments import check_plain_function
from minimq.consuming.queue_decisions import OffsetReset
from minimq.options import START_TIMEOUT_S, check_above_zero
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue
from minimq_common.security.credentials import CredentialsArgument
from minimq_common.text_units import check_path
from minimq_common.wire.protocol_bounds import DAY_MS

#: Called with queues that a consumer has gained or lost.
QueuesCallback = Callable[[Sequence[MessageQueue]], object]

#: Called when a consumer continues at another offset; see `OffsetReset`.
OffsetCallback = Callable[[OffsetReset], object]

#: Where a consumer continues if its next message was deleted.
OffsetResetRule = Literal["earliest", "latest", "error"]


class SharedChanges(TypedDict, total=False):
    """Options that pull and push consumers share, as keyword arguments; see `SharedOptions`."""

    prefetch_bytes: int
    commit_interval_s: float
    start_timeout_s: float
    revoke_timeout_s: float
    broadcast_dir: str | os.PathLike[str] | None
    credentials: CredentialsArgument | None


class ConsumerChanges(SharedChanges, total=False):
    """Options of a pull consumer as keyword arguments; see `ConsumerOptions`."""

    request_timeout_s: float
    handover_timeout_s: float
    offset_reset: OffsetResetRule
    on_offset_reset: OffsetCallback | None
    on_assigned: QueuesCallback | None
    on_revoked: QueuesCallback | None
    on_lost: QueuesCallback | None


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """Options that pull and push consumers share, given by name; each names the reason to change it.

    Attributes:
        prefetch_bytes: maximum bytes of prefetched messages, and as much again in flight to listeners. Each queue has
            an equal share, but always room for one batch. Lower it where memory is scarce; raise it if many queues
            share a connection with a long round trip.
        commit_interval_s: seconds between two automatic commits; 0 turns them off. Lower it to reread less after a
            crash.
        start_timeout_s: seconds for which the start of a consumer (`start`, `assign`, or the first polls, each within
            its own timeout) waits for a name server and for the brokers of its topics; 0 waits for neither. Lower it
            where a supervisor restarts programs whose servers are unavailable.
        revoke_timeout_s: seconds after which a revoked queue is returned although messages are in flight. Raise it if
            the work between two polls, or a listener call, may take longer.
        broadcast_dir: folder where this consumer keeps its offsets itself, in GROUP/CLIENT_ID.json: then it reads all
            queues instead of sharing them with the group (broadcasting), and needs a stable `client_id`. For caches
            that each process keeps; a volume in containers.
        credentials: path of the credentials file of a user, or `Credentials`; by default the file named by the variable
            MINIMQ_CREDENTIALS. A `Cluster` has its own. Set it if one process acts as several users.
    """

    prefetch_bytes: int = 16 << 20
    commit_interval_s: float = 5.0
    start_timeout_s: float = START_TIMEOUT_S
    revoke_timeout_s: float = 30.0
    broadcast_dir: str | os.PathLike[str] | None = None
    credentials: CredentialsArgument | None = None

    def __post_init__(self) -> None:
        check_above_zero(self, but=("commit_interval_s", "handover_timeout_s", "start_timeout_s"))
        if self.broadcast_dir is not None:
            folder: object = self.broadcast_dir
            if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
                raise InvalidArgument(f"broadcast_dir is {folder!r}: it must be the path of a folder")
            check_path("broadcast_dir", folder)


@dataclass(frozen=True, slots=True)
class ConsumerOptions(SharedOptions):
    """Options of pull consumers, given by name: those of `SharedOptions`, and these.

    Attributes:
        request_timeout_s: timeout of calls to brokers in seconds. Raise it on networks that are slow or often break.
        handover_timeout_s: seconds for which a queue that this consumer has left is held for it, unless it reports that
            its state is saved; 0 turns that off. The same on all members. Set it if members keep state for each queue.
        offset_reset: where to continue if the next message of a queue was deleted before it was read: at the "earliest"
            or "latest" stored message, or "error", which raises `OffsetOutOfRange`. Choose "error" if a gap must stop
            the program.
        on_offset_reset: called with an `OffsetReset` that describes the missed messages. Set it to report gaps.
        on_assigned: called with newly assigned queues, before their first message is delivered. Set it to load the
            state of queues.
        on_revoked: called with queues that are revoked, or at close: after their last message is finished and before
            their last commit. Return `False` if their state is not saved yet. Set it to save the state of queues.
        on_lost: called with queues that were lost without `on_revoked`; the group continues from their last commit. Set
            it to drop the state of queues.
    """

    request_timeout_s: float = 5.0
    handover_timeout_s: float = 0.0
    offset_reset: OffsetResetRule = "earliest"
    on_offset_reset: OffsetCallback | None = None
    on_assigned: QueuesCallback | None = None
    on_revoked: QueuesCallback | None = None
    on_lost: QueuesCallback | None = None

    def __post_init__(self) -> None:
        SharedOptions.__post_init__(self)
        if self.handover_timeout_s * 1000 > DAY_MS:
            raise InvalidArgument(
                f"handover_timeout_s is {self.handover_timeout_s}: it must be at most {DAY_MS // 1000}, a day"
            )
        if self.offset_reset not in get_args(OffsetResetRule):
            choices = ", ".join(get_args(OffsetResetRule))
            raise InvalidArgument(f"offset_reset is {self.offset_reset!r}: it must be one of {choices}")
        for name in ("on_assigned", "on_revoked", "on_lost", "on_offset_reset"):
            if (value := getattr(self, name)) is not None:
                check_plain_function(name, value)
