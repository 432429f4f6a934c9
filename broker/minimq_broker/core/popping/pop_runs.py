"""Runs of a popped queue: neighboring messages in the same state.

Consumers take messages, settle those that they have, and leave; facts say what becomes of the runs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import Annotated, NamedTuple

import msgspec

from minimq_common.names import MAX_CLIENT_ID

#: Runs of one popped queue: with more of them, no message is delivered for the first time. A settle may make twice as
#: many; the rest of it is refused, and redeliveries divide no run any more.
MAX_RUNS = 4_096
#: Runs of the dead letters of one queue, settled and open ones by turns.
MAX_CLAIMED_RUNS = 65_536
#: Messages of one queue that the consumers of one group may have.
MAX_HELD = 100_000
#: Deliveries of one message, as far as they are counted.
MAX_TRIES = (1 << 31) - 1
#: Consumers that died with a message, as far as they are counted.
MAX_LOST = 2
#: Runs in one fact, and in the row of one queue: enough for many consumers that settle at once.
_MAX_CHANGED = 1 << 20
#: Later than any time, in ms.
NEVER = (1 << 63) - 1
_POSITION_BITS = 48
_TERM_BITS = 15

_Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Tries = Annotated[int, msgspec.Meta(ge=0, le=MAX_TRIES)]
_Client = Annotated[str, msgspec.Meta(max_length=MAX_CLIENT_ID)]
_Lost = Annotated[int, msgspec.Meta(ge=0, le=MAX_LOST)]
_LaneHash = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class RunState(IntEnum):
    """The state of the messages of a run."""

    #: Nobody has them; they may be taken from `until_ms` on.
    FREE = 0
    #: A consumer has them, until `until_ms`.
    OUT = 1
    #: They are settled.
    DONE = 2


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Neighboring messages of a queue in the same state, from `first` to before `end`."""

    first: _Offset
    end: _Offset
    state: RunState
    tries: _Tries = 0
    #: When they may be redelivered, in ms since 1970; 0: at once.
    until_ms: _Offset = 0
    #: Of their latest delivery, also after its end; 0: there was none.
    epoch: _Offset = 0
    client: _Client = ""
    #: Of their message group, until they are settled; 0 if the topic is not FIFO, or they cannot be read.
    lane: _LaneHash = 0
    #: Number of consumers that died with them since the last outcome, `MAX_LOST` for more: with one, others may be
    #: the reason; from then on they are delivered with nothing else.
    lost: _Lost = 0

    @property
    def count(self) -> int:
        """Number of messages."""
        return self.end - self.first

    def part(self, first: int, end: int) -> Run:
        """Return the run of some of these messages."""
        if first == self.first and end == self.end:
            return self
        return Run(first, end, self.state, self.tries, self.until_ms, self.epoch, self.client, self.lane, self.lost)

    def continues(self, before: Run) -> bool:
        """Tell whether the run that ends where this one begins has the same state, so that both are one."""
        return (
            self.state == before.state
            and self.epoch == before.epoch
            and self.tries == before.tries
            and self.until_ms == before.until_ms
            and self.client == before.client
            and self.lane == before.lane
            and self.lost == before.lost
        )


def merged_runs(runs: list[Run]) -> list[Run]:
    """Return adjacent runs, those with the same state as one."""
    found = [runs[0]]
    for run in runs[1:]:
        last = found[-1]
        if run.continues(last):
            found[-1] = run.part(last.first, run.end)
        else:
            found.append(run)
    return found


#: The runs in a fact.
Runs = Annotated[tuple[Run, ...], msgspec.Meta(max_length=_MAX_CHANGED)]


class QueueMoved(msgspec.Struct, frozen=True, array_like=True):
    """A change of one queue that a group pops."""

    topic_id: int
    queue_id: int
    #: The new states of messages, to be applied in this order.
    runs: Runs
    #: The first offset that is stored, if messages before it were deleted unsettled; else 0.
    done: _Offset = 0


class PopMoved(msgspec.Struct, frozen=True, tag="pop-moved"):
    """Messages of queues that a group pops were delivered, settled or released."""

    group: str
    queues: Annotated[tuple[QueueMoved, ...], msgspec.Meta(max_length=_MAX_CHANGED)]


def handle_epoch(term: int, position: int) -> int:
    """Return the epoch of the deliveries that the entry at a log position records: no other entry has it.

    A position alone would repeat after the end of a log was truncated, and a counter after a group was deleted.
    """
    return (term % (1 << _TERM_BITS)) << _POSITION_BITS | position % (1 << _POSITION_BITS)


class PopKey(NamedTuple):
    """A queue, and the group that pops it."""

    group: str
    topic_id: int
    queue_id: int


class Stretch(NamedTuple):
    """Neighboring messages of a queue with the same lane; 0: with none."""

    first: int
    end: int
    lane: int


class PopOutcome(IntEnum):
    """The outcome of delivered messages."""

    #: They are consumed.
    DONE = 0
    #: They failed: others may have them, after a time.
    FREE = 1
    #: Their consumer keeps them for longer.
    EXTEND = 2
    #: Redeliver without counting a try: no listener saw them.
    RETURN = 3


class Take(NamedTuple):
    """A consumer wants messages."""

    #: Its id; "" if the messages stay with their handle when it is gone.
    client: str
    most: int
    until_ms: int
    #: New messages that no consumer of the group wants, from one offset to before another: passed over.
    unwanted: tuple[int, int] = (0, 0)
    #: Only redeliver: the broker has as many runs as it may.
    again_only: bool = False
    ahead: bool = False
    #: In a FIFO topic, the lanes of the next messages to be delivered for the first time; else None.
    lanes: Sequence[Stretch] | None = None
    present: Collection[str] = ()
    asked_ms: int = NEVER

    def losses(self, run: Run) -> int:
        """Return the number of consumers that died with the messages of a run that is due; see `Run.lost`."""
        is_lost = run.state is RunState.OUT and run.client != "" and run.client not in self.present
        return min(run.lost + is_lost, MAX_LOST)


class Settle(NamedTuple):
    """A consumer tells the outcome of messages that it has."""

    epoch: int
    #: Their offsets, each span from the first to before the second; ascending.
    spans: Sequence[tuple[int, int]]
    outcome: PopOutcome
    #: The new end of their invisible duration, or when they may be redelivered.
    until_ms: int = 0
    #: The queue may have more runs than before.
    may_divide: bool = True


class Claim(NamedTuple):
    """An operator settles messages that no consumer has taken: dead letters."""

    #: As of a `Settle`.
    spans: Sequence[tuple[int, int]]
    #: Where the queue ends.
    end: int


class Reopen(NamedTuple):
    """Settled messages are delivered again, with all of their tries."""

    #: As of a `Settle`.
    spans: Sequence[tuple[int, int]]
    may_divide: bool = True


class Leave(NamedTuple):
    """A consumer is gone: its messages are released."""

    client: str
    #: It has not announced that: one of its messages may be the reason.
    died: bool = True
