"""Runs of a popped queue: adjacent messages in the same state; the requests that change them, and the facts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import IntEnum
from hashlib import blake2b
from typing import Annotated, NamedTuple

import msgspec
from msgspec.structs import replace

from minimq_common.names import MAX_CLIENT_ID

#: A queue with this many bitmaps, about 300 bytes each, delivers no new messages.
MAX_BITMAPS = 1 << 18
#: Delivered and unsettled messages of one queue and group.
MAX_HELD = 100_000
#: Counting of `Run.delivery_count` stops here.
MAX_DELIVERY_COUNT = (1 << 31) - 1
#: Counting of `Run.lost` stops here.
MAX_LOST = 2
#: Runs in one fact: enough for many consumers that settle at once.
_MAX_CHANGED = 1 << 20
NEVER = (1 << 63) - 1
_POSITION_BITS = 48
_TERM_BITS = 15

_Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_DeliveryCount = Annotated[int, msgspec.Meta(ge=0, le=MAX_DELIVERY_COUNT)]
_Client = Annotated[str, msgspec.Meta(max_length=MAX_CLIENT_ID)]
_Lost = Annotated[int, msgspec.Meta(ge=0, le=MAX_LOST)]
_GroupHash = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class RunState(IntEnum):
    #: Can be delivered from `until_ms` on.
    FREE = 0
    #: Delivered; a consumer has them until `until_ms`.
    OUT = 1
    DONE = 2


class Status(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The state of an unsettled message, without its message group: see `Run`."""

    state: RunState
    delivery_count: _DeliveryCount = 0
    until_ms: _Offset = 0
    epoch: _Offset = 0
    client: _Client = ""
    lost: _Lost = 0

    def run(self, first: int, end: int, group_hash: int = 0) -> Run:
        return Run(
            first, end, self.state, self.delivery_count, self.until_ms, self.epoch, self.client, group_hash, self.lost
        )


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Adjacent messages of a queue in the same state, from `first` to before `end`."""

    first: _Offset
    end: _Offset
    state: RunState
    #: Number of deliveries.
    delivery_count: _DeliveryCount = 0
    #: When they may be redelivered, in ms since 1970; 0: at once.
    until_ms: _Offset = 0
    #: Epoch of the latest delivery, even if that has ended; 0 without one.
    epoch: _Offset = 0
    client: _Client = ""
    #: Group hash of unsettled messages; 0 if the topic is not FIFO, or the messages cannot be read.
    group_hash: _GroupHash = 0
    #: Consumers that died with them since the last outcome. After the first death, which other messages may have
    #: caused, each is delivered alone.
    lost: _Lost = 0

    @property
    def count(self) -> int:
        return self.end - self.first

    def part(self, first: int, end: int) -> Run:
        if first == self.first and end == self.end:
            return self
        return replace(self, first=first, end=end)

    @property
    def status(self) -> Status:
        return Status(self.state, self.delivery_count, self.until_ms, self.epoch, self.client, self.lost)

    def continues(self, before: Run) -> bool:
        """Return whether it can be merged with `before`: it is the next one, and everything else is the same."""
        return before.end == self.first and before.group_hash == self.group_hash and before.status == self.status


def merged_runs(runs: Iterable[Run]) -> list[Run]:
    found: list[Run] = []
    for run in runs:
        add_run(found, run)
    return found


def add_run(found: list[Run], run: Run) -> None:
    """Append a run, or merge it with the last one."""
    if found and run.continues(found[-1]):
        found[-1] = run.part(found[-1].first, run.end)
    else:
        found.append(run)


Runs = Annotated[tuple[Run, ...], msgspec.Meta(max_length=_MAX_CHANGED)]


class QueueMoved(msgspec.Struct, frozen=True, array_like=True):
    topic_id: int
    queue_id: int
    #: New states of messages, to be applied in this order.
    runs: Runs
    #: Dropped first: unsettled messages before this offset, which were deleted; 0 if there are none.
    done: _Offset = 0


class PopMoved(msgspec.Struct, frozen=True, tag="work_queues.moved"):
    """Messages of queues popped by a group were delivered, settled or released."""

    group: str
    queues: Annotated[tuple[QueueMoved, ...], msgspec.Meta(max_length=_MAX_CHANGED)]


def handle_epoch(term: int, position: int) -> int:
    """Return the epoch of the deliveries that the entry at a log position records. It is unique.

    A position alone would repeat after the log was truncated, a counter after a group was deleted.
    """
    return (term % (1 << _TERM_BITS)) << _POSITION_BITS | position % (1 << _POSITION_BITS)


def epoch_of_user(epoch: int, user: int) -> int:
    """Return the epoch in the runs of a user's deliveries, so that other users cannot settle them by their handles."""
    if not epoch or not user:
        return epoch
    digest = blake2b(b"%d %d" % (epoch, user), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 or 1


class PopKey(NamedTuple):
    group: str
    topic_id: int
    queue_id: int


class GroupRange(NamedTuple):
    """Adjacent messages of a queue with the same group hash; 0 means none."""

    first: int
    end: int
    group_hash: int


class PopOutcome(IntEnum):
    DONE = 0
    #: Failed: redeliver after a time.
    FREE = 1
    #: The consumer keeps them for longer.
    EXTEND = 2
    #: No listener saw them: redeliver without counting the delivery.
    RETURN = 3


class Take(NamedTuple):
    #: Client id; "" if the messages are not released when the client is gone.
    client: str
    most: int
    until_ms: int
    #: First and end offset of new messages that do not match the filter of the group: skipped.
    unwanted: tuple[int, int] = (0, 0)
    #: Deliver no new messages, because the broker has too many bitmaps.
    redeliver_only: bool = False
    #: A prefetch: deliver nothing while messages wait that have failed before.
    ahead: bool = False
    #: In a FIFO topic: the message groups of the new messages.
    group_hashes: Sequence[GroupRange] | None = None
    #: The connected consumers of the group.
    present: Collection[str] = ()
    #: Time of the request, by the clock of redeliveries.
    asked_ms: int = NEVER
    #: Tag of the user.
    user: int = 0

    def losses(self, run: Run) -> int:
        """Return `Run.lost` of a run that is due, plus one if its latest consumer is gone."""
        is_lost = run.state is RunState.OUT and run.client != "" and run.client not in self.present
        return min(run.lost + is_lost, MAX_LOST)


class Settle(NamedTuple):
    epoch: int
    #: Ascending pairs of first and end offset.
    spans: Sequence[tuple[int, int]]
    outcome: PopOutcome
    #: New end of the invisible duration, or time of the redelivery.
    until_ms: int = 0


class Resolve(NamedTuple):
    """An operator settles dead letters, which no consumer has."""

    spans: Sequence[tuple[int, int]]
    #: End of the queue.
    end: int


class Leave(NamedTuple):
    client: str
    #: It left without notice: one of its messages may have killed it.
    died: bool = True
