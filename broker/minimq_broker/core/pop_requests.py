"""Requests of consumers about a popped queue: to take messages, and to settle those that they have."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from minimq_broker.core.pop_lanes import Stretch


class PopOutcome(IntEnum):
    """The end of messages that somebody has."""

    #: They are consumed.
    DONE = 0
    #: They failed: others may have them, after a time.
    FREE = 1
    #: Whoever has them keeps them for longer.
    EXTEND = 2
    #: They were not looked at: others may have them, and this was no try.
    RETURN = 3


class Take(NamedTuple):
    """A consumer wants messages.

    Attributes:
        client: who; "" if what is handed out outlives its consumer.
        most: number of them.
        until_ms: until when it may keep them.
        unwanted: first offset of new messages that no consumer of the group wants, and the one behind: passed over.
        again_only: nothing is handed out for the first time: the broker has as many runs as it may.
        ahead: nobody has asked for them yet: nothing is handed out while some wait that have failed.
        lanes: of a FIFO topic the lanes of messages that nobody had, from some offset on; None of any other.
    """

    client: str
    most: int
    until_ms: int
    unwanted: tuple[int, int] = (0, 0)
    again_only: bool = False
    ahead: bool = False
    lanes: Sequence[Stretch] | None = None


class Settle(NamedTuple):
    """A consumer says what becomes of messages that it has.

    Attributes:
        epoch: of their handle.
        spans: first offset, and the one behind the last; ascending.
        outcome: what becomes of them.
        until_ms: until when they are kept, or not before when they are handed out again.
        may_divide: the queue may fall into more pieces.
    """

    epoch: int
    spans: Sequence[tuple[int, int]]
    outcome: PopOutcome
    until_ms: int = 0
    may_divide: bool = True
