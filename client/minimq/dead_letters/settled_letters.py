"""The record of the dead letters that were resent or dropped. All others are open.

Each mark names dead letters of one queue. It also has the time at which the latest of them failed: if the topic of dead
letters is deleted and created again, others have the same offsets, and failed later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec

from minimq_common.errors import InvalidArgument

Outcome = Literal["resent", "dropped"]
#: Dead letters in one mark, and so runs of their offsets.
MAX_MARKED = 1_000

_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Count = Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]
_Runs = Annotated[list[tuple[_Number, _Count]], msgspec.Meta(max_length=MAX_MARKED)]


class Mark(msgspec.Struct, frozen=True):
    """A row of dead letters of one queue that were settled together; its JSON is the body of a message."""

    queue_id: _Number
    runs: _Runs
    #: When the latest of them failed, in ms since 1970.
    died_ms: _Number
    outcome: Outcome

    def encode(self) -> bytes:
        """Return the body of the message."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, body: bytes) -> Mark:
        """Return the mark of a body. Raises `InvalidArgument` when it is none."""
        try:
            return _decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise InvalidArgument(f"no mark of settled dead letters: {error}") from None


_decoder = msgspec.json.Decoder(Mark)


def mark_of(queue_id: int, offsets: Iterable[int], died_ms: int, outcome: Outcome) -> Mark:
    """Return the mark of dead letters with these offsets, which ascend."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and sum(runs[-1]) == offset:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((offset, 1))
    return Mark(queue_id, runs, died_ms, outcome)


class _Settled(NamedTuple):
    first: int
    end: int
    died_ms: int


class SettledLetters:
    """The settled dead letters of one queue."""

    def __init__(self) -> None:
        #: Ascending, without overlaps.
        self._runs: list[_Settled] = []

    def add(self, runs: Sequence[tuple[int, int]], died_ms: int) -> None:
        """Take note of a mark; of two that name the same offset, the later one counts."""
        for first, count in runs:
            new = _Settled(first, first + count, died_ms)
            known, rest = self._runs, [new]
            i = j = bisect_right(known, first, key=_end_of)
            while j < len(known) and known[j].first < new.end:
                old = known[j]
                if old.first < first:
                    rest.insert(0, old._replace(end=first))
                if old.end > new.end:
                    rest.append(old._replace(first=new.end))
                j += 1
            known[i:j] = rest

    def has(self, offset: int, died_ms: int) -> bool:
        """Return whether the dead letter stored at an offset at a time is settled."""
        i = bisect_right(self._runs, offset, key=_end_of)
        return i < len(self._runs) and self._runs[i].first <= offset and died_ms <= self._runs[i].died_ms


def _end_of(run: _Settled) -> int:
    return run.end
