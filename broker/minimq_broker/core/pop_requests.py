"""Requests about a popped queue: consumers take messages, settle those that they have, and leave."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import NamedTuple

from minimq_broker.core.pop_lanes import NEVER, Stretch
from minimq_broker.core.pop_runs import MAX_LOST, Run, RunState


class PopOutcome(IntEnum):
    """The outcome of delivered messages."""

    #: They are consumed.
    DONE = 0
    #: They failed: others may have them, after a time.
    FREE = 1
    #: Their consumer keeps them for longer.
    EXTEND = 2
    #: Nobody has looked at them: others may have them, and this delivery was no try.
    RETURN = 3


class Take(NamedTuple):
    """A consumer wants messages.

    Attributes:
        client: its id; "" if the messages stay with their handle when it is gone.
        most: maximum number of them.
        until_ms: end of their invisible duration.
        unwanted: new messages that no consumer of the group wants, from one offset to before another: passed over.
        again_only: only redeliver: the broker has as many runs as it may.
        ahead: the consumer prefetches them: it gets nothing while failed messages are due.
        lanes: in a FIFO topic, the lanes of the next messages to be delivered for the first time; else None.
        present: the consumers of the group that are connected.
        asked_ms: when the consumer asked: it was alive then.
    """

    client: str
    most: int
    until_ms: int
    unwanted: tuple[int, int] = (0, 0)
    again_only: bool = False
    ahead: bool = False
    lanes: Sequence[Stretch] | None = None
    present: Collection[str] = ()
    asked_ms: int = NEVER

    def losses(self, run: Run) -> int:
        """Return the number of consumers that died with the messages of a run that is due; see `Run.lost`."""
        is_lost = run.state is RunState.OUT and run.client != "" and run.client not in self.present
        return min(run.lost + is_lost, MAX_LOST)


class Settle(NamedTuple):
    """A consumer tells the outcome of messages that it has.

    Attributes:
        epoch: of their delivery.
        spans: their offsets, each span from the first to before the second; ascending.
        outcome: the same for all of them.
        until_ms: the new end of their invisible duration, or when they may be redelivered.
        may_divide: the queue may have more runs than before.
    """

    epoch: int
    spans: Sequence[tuple[int, int]]
    outcome: PopOutcome
    until_ms: int = 0
    may_divide: bool = True


class Leave(NamedTuple):
    """A consumer is gone: its messages are released.

    Attributes:
        client: its id.
        died: it has not announced that: one of its messages may be the reason.
    """

    client: str
    died: bool = True
