"""Requests about a popped queue: consumers take messages, settle those that they have, and leave."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import NamedTuple

from minimq_broker.core.popping.pop_lanes import NEVER, Stretch
from minimq_broker.core.popping.pop_runs import MAX_LOST, Run, RunState


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
