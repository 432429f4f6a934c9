"""Runs of a popped queue: messages next to each other of which the same is true, and the handle of who has them."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec

from minimq_common.names import MAX_CLIENT_ID

#: Pieces into which a popped queue may fall: with more of them no message is handed out for the first time. Of an
#: answer that would make twice as many the rest is refused, and hand-outs do not divide runs any more.
MAX_RUNS = 4_096
#: Messages of one queue that the consumers of one group may have in hand.
MAX_HELD = 100_000
#: Times that one message was handed out, as far as they are counted.
MAX_TRIES = (1 << 31) - 1
#: Runs that one fact changes, and that the row of one queue has: also where many consumers answer at once.
_MAX_CHANGED = 1 << 20
_POSITION_BITS = 48
_TERM_BITS = 15

_Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Tries = Annotated[int, msgspec.Meta(ge=0, le=MAX_TRIES)]
_Client = Annotated[str, msgspec.Meta(max_length=MAX_CLIENT_ID)]
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
    """Messages next to each other in a queue, from `first` to before `end`.

    Attributes:
        tries: how often they were handed out, this time included.
        until_ms: when they may be handed out again, in ms since 1970; 0: at once.
        epoch: the handle of those who got them last, also when they have them no more; 0: nobody had.
        client: who has them; "" when nobody has.
        lane: of their message group, while they are not settled; 0 in a topic that is not FIFO.
    """

    first: _Offset
    end: _Offset
    state: RunState
    tries: _Tries = 0
    until_ms: _Offset = 0
    epoch: _Offset = 0
    client: _Client = ""
    lane: _LaneHash = 0

    @property
    def count(self) -> int:
        """Number of messages."""
        return self.end - self.first

    def part(self, first: int, end: int) -> Run:
        """Return the run of some of these messages."""
        if first == self.first and end == self.end:
            return self
        return Run(first, end, self.state, self.tries, self.until_ms, self.epoch, self.client, self.lane)

    def continues(self, before: Run) -> bool:
        """Tell whether the same is true of the run that ends where this one begins."""
        return (
            self.state == before.state
            and self.epoch == before.epoch
            and self.tries == before.tries
            and self.until_ms == before.until_ms
            and self.client == before.client
            and self.lane == before.lane
        )


def merged_runs(runs: list[Run]) -> list[Run]:
    """Return the runs, those made one of which the same is true."""
    found = [runs[0]]
    for run in runs[1:]:
        last = found[-1]
        if run.continues(last):
            found[-1] = Run(last.first, run.end, run.state, run.tries, run.until_ms, run.epoch, run.client, run.lane)
        else:
            found.append(run)
    return found


#: As a fact has them.
Runs = Annotated[tuple[Run, ...], msgspec.Meta(max_length=_MAX_CHANGED)]


class QueueMoved(msgspec.Struct, frozen=True, array_like=True):
    """A change of one queue that a group pops.

    Attributes:
        runs: what is true of these messages from now on, in this order.
        done: offset before which nothing is left to hand out: what was there is deleted; 0 when nothing is.
    """

    topic_id: int
    queue_id: int
    runs: Runs
    done: _Offset = 0


class PopMoved(msgspec.Struct, frozen=True, tag="pop-moved"):
    """Something was handed out, settled or freed in queues that a group pops."""

    group: str
    queues: Annotated[tuple[QueueMoved, ...], msgspec.Meta(max_length=_MAX_CHANGED)]


def handle_epoch(term: int, position: int) -> int:
    """Return the epoch of what is handed out by the entry at a log position: no other entry has it.

    A position alone would repeat after the end of a log was truncated, and a counter after a group was deleted.
    """
    return (term % (1 << _TERM_BITS)) << _POSITION_BITS | position % (1 << _POSITION_BITS)
