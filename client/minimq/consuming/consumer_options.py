"""The options of consumers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from minimq.arguments import check_between, check_count, check_plain_function
from minimq.consuming.queue_decisions import OffsetReset
from minimq.consuming.start_position import Start, start_position
from minimq.options import START_TIMEOUT_S, check_above_zero
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue
from minimq_common.security.credentials import CredentialsArgument
from minimq_common.text_units import check_path
from minimq_common.wire.protocol_bounds import DAY_MS, MAX_INVISIBLE_MS, MAX_TAKEN, MIN_INVISIBLE_MS

#: From 10 seconds to 2 hours, as in RocketMQ.
RETRY_DELAYS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)

#: Default number of deliveries of a message after which it becomes a dead letter.
MAX_DELIVERIES = 16

#: Called with queues that a consumer has gained or lost.
QueuesCallback = Callable[[Sequence[MessageQueue]], object]

#: Called when a consumer continues at another offset; see `OffsetReset`.
OffsetCallback = Callable[[OffsetReset], object]

#: Where a consumer continues if its next message was deleted.
OffsetResetRule = Literal["earliest", "latest", "error"]


class ConsumerChanges(TypedDict, total=False):
    """Options of a consumer as keyword arguments; see `ConsumerOptions`."""

    prefetch_bytes: int
    commit_interval_s: float
    request_timeout_s: float
    start_timeout_s: float
    revoke_timeout_s: float
    max_deliveries: int | None
    retry_delays_s: Sequence[float] | None
    consume_timeout_s: float
    invisible_s: float
    handover_timeout_s: float
    broadcast_dir: str | os.PathLike[str] | None
    offset_reset: OffsetResetRule
    on_offset_reset: OffsetCallback | None
    on_assigned: QueuesCallback | None
    on_revoked: QueuesCallback | None
    on_lost: QueuesCallback | None
    credentials: CredentialsArgument | None


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Options of consumers, given by name. The defaults suit most programs; each option names the reason to change it.

    Attributes:
        prefetch_bytes: maximum bytes of prefetched messages, and as much again in flight to listeners. Each queue has
            an equal share, but always room for one batch. Lower it where memory is scarce; raise it if many queues
            share a connection with a long round trip.
        commit_interval_s: seconds between two automatic commits; 0 turns them off. Lower it to reread less after a
            crash.
        request_timeout_s: timeout of calls to brokers in seconds. Raise it on networks that are slow or often break.
        start_timeout_s: seconds for which the start of a consumer (`start`, `assign`, or the first polls, each within
            its own timeout) waits for a name server and for the brokers of its topics; 0 waits for neither. Lower it
            where a supervisor restarts programs whose servers are unavailable.
        revoke_timeout_s: seconds after which a revoked queue is returned although messages are in flight. Raise it if
            the work between two polls, or a listener call, may take longer.
        max_deliveries: deliveries of a message, the first one included, after which it becomes a dead letter; None for
            16, and for no limit in an orderly consumer. Lower it if failed messages rarely succeed later.
        retry_delays_s: seconds before each retry, up to 43200; the last value applies to all further retries. None for
            10 seconds to 2 hours, and for 1 second in an orderly consumer, whose queue waits meanwhile. Change it to
            match the outages of what the listener calls.
        consume_timeout_s: seconds after which a call of the listener counts as hung. Raise it for long jobs.
        invisible_s: for retries, and for all messages with `mode="work_queue"`: seconds after which the messages of a
            consumer that hangs or is cut off are redelivered, from 1 to 43200; a live consumer extends them. Lower it
            if they must not wait so long; raise it if the process may pause for longer.
        handover_timeout_s: seconds for which a queue that this consumer has left is held for it, unless it reports that
            its state is saved; 0 turns that off. The same on all members. Set it if members keep state for each queue.
        broadcast_dir: folder where this consumer keeps its offsets itself, in GROUP/CLIENT_ID.json: then it reads all
            queues instead of sharing them with the group (broadcasting), and needs a stable `client_id`. For caches
            that each process keeps; a volume in containers.
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
        credentials: path of the credentials file of a user, or `Credentials`; by default the file named by the variable
            MINIMQ_CREDENTIALS. A `Cluster` has its own. Set it if one process acts as several users.
    """

    prefetch_bytes: int = 16 << 20
    commit_interval_s: float = 5.0
    request_timeout_s: float = 5.0
    start_timeout_s: float = START_TIMEOUT_S
    revoke_timeout_s: float = 30.0
    max_deliveries: int | None = None
    retry_delays_s: Sequence[float] | None = None
    consume_timeout_s: float = 900.0
    invisible_s: float = 30.0
    handover_timeout_s: float = 0.0
    broadcast_dir: str | os.PathLike[str] | None = None
    offset_reset: OffsetResetRule = "earliest"
    on_offset_reset: OffsetCallback | None = None
    on_assigned: QueuesCallback | None = None
    on_revoked: QueuesCallback | None = None
    on_lost: QueuesCallback | None = None
    credentials: CredentialsArgument | None = None

    def __post_init__(self) -> None:
        check_above_zero(self, but=("commit_interval_s", "handover_timeout_s", "start_timeout_s"))
        if self.max_deliveries is not None and (type(self.max_deliveries) is not int or self.max_deliveries < 1):
            raise InvalidArgument(
                f"max_deliveries is {self.max_deliveries!r}: it must be a whole number from 1 on, or None"
            )
        if self.handover_timeout_s * 1000 > DAY_MS:
            raise InvalidArgument(
                f"handover_timeout_s is {self.handover_timeout_s}: it must be at most {DAY_MS // 1000}, a day"
            )
        invisible_ms(self.invisible_s)
        if self.retry_delays_s is not None and not _are_delays(self.retry_delays_s):
            raise InvalidArgument(
                f"retry_delays_s is {self.retry_delays_s!r}: it must be a sequence of numbers above 0, up to "
                f"{MAX_INVISIBLE_MS // 1000}"
            )
        if self.offset_reset not in get_args(OffsetResetRule):
            choices = ", ".join(get_args(OffsetResetRule))
            raise InvalidArgument(f"offset_reset is {self.offset_reset!r}: it must be one of {choices}")
        if self.broadcast_dir is not None:
            folder: object = self.broadcast_dir
            if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
                raise InvalidArgument(f"broadcast_dir is {folder!r}: it must be the path of a folder")
            check_path("broadcast_dir", folder)
        self._check_callbacks()

    def _check_callbacks(self) -> None:
        for name in ("on_assigned", "on_revoked", "on_lost", "on_offset_reset"):
            value = getattr(self, name)
            if value is not None:
                check_plain_function(name, value)


def invisible_ms(value: object, name: str = "invisible_s", shortest_ms: int = MIN_INVISIBLE_MS) -> int:
    """Convert seconds to ms. Raises `InvalidArgument` unless the value is a number within the limits of brokers."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InvalidArgument(f"{name} is {value!r}: it must be a number of seconds")
    if not shortest_ms <= value * 1000 <= MAX_INVISIBLE_MS:
        raise InvalidArgument(
            f"{name} is {value!r}: it must be from {shortest_ms / 1000:g} to {MAX_INVISIBLE_MS // 1000} seconds"
        )
    return round(value * 1000)


def _are_delays(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) > 0
        and all(type(delay) in (int, float) and 0 < delay <= MAX_INVISIBLE_MS / 1000 for delay in value)
    )


#: Enough to make the cost of requests negligible, and few enough to leave messages for other consumers.
PREFETCH_MESSAGES = 4096


@dataclass(frozen=True, slots=True)
class WorkQueueOptions:
    """The checked arguments of a `WorkQueueConsumer`."""

    invisible_s: float = 30.0
    max_deliveries: int = 16
    start: Start = "earliest"
    release_on_close: bool = True
    request_timeout_s: float = 10.0
    prefetch_messages: int = PREFETCH_MESSAGES
    credentials: CredentialsArgument | None = None

    def __post_init__(self) -> None:
        invisible_ms(self.invisible_s)
        check_count("max_deliveries", self.max_deliveries)
        check_between("prefetch_messages", self.prefetch_messages, 0, MAX_TAKEN)
        check_above_zero(self, but=("prefetch_messages",))
        start_position(self.start)
