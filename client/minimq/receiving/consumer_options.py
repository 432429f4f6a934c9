"""The options of consumers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from minimq.options import START_TIMEOUT_S, check_above_zero
from minimq.receiving.listener import is_async
from minimq.receiving.offset_reset import OffsetReset
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue
from minimq_common.protocol_bounds import DAY_MS, MAX_INVISIBLE_MS, MIN_INVISIBLE_MS
from minimq_common.security.credentials import CredentialsArgument

#: Ten seconds to two hours, as RocketMQ has them.
RETRY_DELAYS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)

#: Called with queues that a consumer has gained or lost.
QueuesCallback = Callable[[Sequence[MessageQueue]], object]

#: Called when a consumer goes on elsewhere, because messages were deleted before it could read them.
OffsetCallback = Callable[[OffsetReset], object]

#: Who of a group reads a queue: one member, or all.
Model = Literal["clustering", "broadcasting"]

#: Who computes the shares of a group.
Assignment = Literal["client", "server"]

#: Where a consumer goes on whose next message was deleted.
OffsetResetRule = Literal["earliest", "latest", "error"]

_CHOICES = {"model": get_args(Model), "assignment": get_args(Assignment), "offset_reset": get_args(OffsetResetRule)}


class ConsumerChanges(TypedDict, total=False):
    """Single options of a consumer, given by name: the fields of `ConsumerOptions`, where each is explained."""

    prefetch_messages: int
    prefetch_bytes: int
    wait_s: float
    commit_interval_s: float
    recommit_interval_s: float
    rebalance_interval_s: float
    heartbeat_interval_s: float
    lease_trust_s: float
    request_timeout_s: float
    start_timeout_s: float
    drain_s: float
    max_in_hand_messages: int
    max_in_hand_bytes: int
    max_in_hand_span: int
    max_tries: int | None
    retry_delays_s: Sequence[float]
    local_retry_s: float
    suspend_s: float
    consume_timeout_s: float
    invisible_s: float
    hold_s: float
    model: Model
    assignment: Assignment
    read_from_slaves: bool
    offsets_dir: str | os.PathLike[str]
    offset_reset: OffsetResetRule
    on_offset_reset: OffsetCallback | None
    on_assigned: QueuesCallback | None
    on_revoked: QueuesCallback | None
    on_lost: QueuesCallback | None
    credentials: CredentialsArgument | None


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Options of reading, for consumers.

    Attributes:
        prefetch_messages: messages of one queue that may be fetched ahead.
        prefetch_bytes: bytes of one queue that may be fetched ahead.
        wait_s: seconds that a broker holds a pull while there is nothing to read.
        commit_interval_s: seconds between two automatic commits; 0 turns them off.
        recommit_interval_s: seconds after which an automatic commit repeats an offset that has not changed, by which
            brokers know that the group of a quiet topic is used; clearly less than their `--group-expiry`.
        rebalance_interval_s: seconds after which the allocation is looked at again though nothing was heard.
        heartbeat_interval_s: seconds between two signs of life to each broker.
        lease_trust_s: seconds without an answer of a broker after which its queues count as lost; more than the
            heartbeat interval and clearly less than the brokers' `--session-timeout`.
        request_timeout_s: seconds that a call to a broker may take.
        start_timeout_s: seconds for which the start of a consumer (`start`, `assign`, or the first polls, each within
            its own timeout) waits for a name server and for the brokers of its topics; 0 waits for neither.
        drain_s: seconds after which a queue that another member was given leaves, though messages are in hand.
        max_in_hand_messages: messages of one queue that listeners may have in hand before no more of it is taken.
        max_in_hand_bytes: bytes of bodies of one queue that listeners may have in hand.
        max_in_hand_span: offsets that may lie between the first unfinished message of a queue and the last one that was
            taken, which is what may be read again after a crash. Not for orderly consumers.
        max_tries: how often a message is tried again before it becomes a dead letter; None for 16 times, and without
            end in an orderly consumer.
        retry_delays_s: seconds before each of these tries; the last one stands for all further tries. The same for all
            members of a group.
        local_retry_s: seconds before a message that could not be sent to the retry topic is given to the listener
            again.
        suspend_s: seconds before an orderly consumer tries again, 0.01 to 30.
        consume_timeout_s: seconds after which a call of the listener counts as hanging.
        invisible_s: with `balance="messages"`, seconds after which others get the messages of a consumer that hangs or
            is cut off, from 1 to 43200; as long as it is there, they begin anew again and again.
        hold_s: seconds that nobody gets a queue which this consumer has left, unless it says that the state which
            belongs to the queue is saved; 0 turns that off. The same on all members.
        model: "clustering", the members of the group share the queues, or "broadcasting", this consumer reads all
            queues and keeps the offsets itself; it needs a `client_id` that stays the same.
        assignment: who computes the shares, "client" or "server"; the same on all members. Servers know the strategies
            averagely and averagely_by_circle.
        read_from_slaves: go on at a slave while a broker has no master that answers, and when a master sends this
            consumer there since it is far behind. The same on all members.
        offsets_dir: where the offsets of broadcasting are kept, GROUP/CLIENT_ID.json.
        offset_reset: where to go on when the next message of a queue was deleted before it was read: "earliest" or
            "latest" of those that are stored, or "error", which raises `OffsetOutOfRange`.
        on_offset_reset: called with an `OffsetReset` that says what was missed.
        on_assigned: called with queues that this consumer has got, before their first message is handed out.
        on_revoked: called with queues that others shall have, or when closing: after their last message is finished
            and before their last commit. Returning `False` says that their state is not saved yet.
        on_lost: called with queues that were taken away; the group goes on at their last commit.
        credentials: path of the credentials file of a user, or `Credentials`; by default that which the variable
            MINIMQ_CREDENTIALS names. A `Cluster` has its own.
    """

    prefetch_messages: int = 100_000
    prefetch_bytes: int = 8 << 20
    wait_s: float = 15.0
    commit_interval_s: float = 5.0
    recommit_interval_s: float = 3600.0
    rebalance_interval_s: float = 20.0
    heartbeat_interval_s: float = 10.0
    lease_trust_s: float = 30.0
    request_timeout_s: float = 5.0
    start_timeout_s: float = START_TIMEOUT_S
    drain_s: float = 30.0
    max_in_hand_messages: int = 4096
    max_in_hand_bytes: int = 16 << 20
    max_in_hand_span: int = 16_384
    max_tries: int | None = None
    retry_delays_s: Sequence[float] = RETRY_DELAYS_S
    local_retry_s: float = 5.0
    suspend_s: float = 1.0
    consume_timeout_s: float = 900.0
    invisible_s: float = 30.0
    hold_s: float = 0.0
    model: Model = "clustering"
    assignment: Assignment = "client"
    read_from_slaves: bool = True
    offsets_dir: str | os.PathLike[str] = "~/.minimq/offsets"
    offset_reset: OffsetResetRule = "earliest"
    on_offset_reset: OffsetCallback | None = None
    on_assigned: QueuesCallback | None = None
    on_revoked: QueuesCallback | None = None
    on_lost: QueuesCallback | None = None
    credentials: CredentialsArgument | None = None

    def __post_init__(self) -> None:
        check_above_zero(self, but=("commit_interval_s", "hold_s", "start_timeout_s"))
        if self.lease_trust_s <= self.heartbeat_interval_s:
            raise InvalidArgument(
                f"lease_trust_s is {self.lease_trust_s}: it must be above heartbeat_interval_s, which is "
                f"{self.heartbeat_interval_s}"
            )
        if self.max_tries is not None and (type(self.max_tries) is not int or self.max_tries < 0):
            raise InvalidArgument(f"max_tries is {self.max_tries!r}: it must be a whole number from 0 on, or None")
        if self.hold_s * 1000 > DAY_MS:
            raise InvalidArgument(f"hold_s is {self.hold_s}: it must be at most {DAY_MS // 1000}, a day")
        if not 0.01 <= self.suspend_s <= 30:
            raise InvalidArgument(f"suspend_s is {self.suspend_s}: it must be from 0.01 to 30")
        invisible_ms(self.invisible_s)
        if not _are_delays(self.retry_delays_s):
            raise InvalidArgument(
                f"retry_delays_s is {self.retry_delays_s!r}: it must be a sequence of finite numbers, all above 0"
            )
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise InvalidArgument(f"{name} is {value!r}: it must be one of {', '.join(choices)}")
        folder: object = self.offsets_dir
        if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
            raise InvalidArgument(f"offsets_dir is {folder!r}: it must be the path of a folder")
        self._check_callbacks()

    def _check_callbacks(self) -> None:
        for name in ("on_assigned", "on_revoked", "on_lost", "on_offset_reset"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise InvalidArgument(f"{name} is {value!r}: it must be a function, or None")
            if is_async(value):
                raise InvalidArgument(
                    f"{name} is a coroutine function, which nobody would await: it must be a plain one"
                )


def invisible_ms(value: object, name: str = "invisible_s", shortest_ms: int = MIN_INVISIBLE_MS) -> int:
    """Return a duration in ms. Raises `InvalidArgument` unless it is a number of seconds within the bounds."""
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
        and all(type(delay) in (int, float) and 0 < delay < math.inf for delay in value)
    )
