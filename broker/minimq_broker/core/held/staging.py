"""Room for staged batches: how many may wait for the end of their transactions, and for how long.

Whoever stages most leaves as much room as it has: a name, or a producer, may have as many batches, bytes and open
parts as are free. So no single one fills the room, and ten greedy ones still leave a part to the eleventh.

The fuller the room is, the sooner transactions go on which nobody works any more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minimq_common.errors import SystemBusy

#: From this fullness on idle transactions expire early, and at this one as early as they may.
_EARLY_FROM = 0.5
_EARLIEST_AT = 0.9


@dataclass(frozen=True, slots=True)
class StagingLimits:
    """Limits on what waits for the end of its transaction."""

    #: Staged batches. All of them take 30 MB of memory.
    batches: int = 200_000
    #: Bytes of their entries in the log.
    size: int = 1 << 62
    #: Open parts, each of which is what one producer has staged for one transaction. All of them take 50 MB.
    parts: int = 50_000


class Staged(NamedTuple):
    """An amount of what is staged; see `StagingLimits`."""

    batches: int = 0
    size: int = 0
    parts: int = 0

    def plus(self, other: Staged) -> Staged:
        """Return the sum."""
        return Staged(self.batches + other.batches, self.size + other.size, self.parts + other.parts)

    def fullness(self, limits: StagingLimits) -> float:
        """Return how full the room is, from 0 to 1: by whatever is scarcest."""
        return max(self.batches / limits.batches, self.size / limits.size, self.parts / limits.parts)


_NOTHING = Staged()


class StagedCount:
    """Counts what is staged: all of it, and what each name and each producer has."""

    def __init__(self) -> None:
        self.all = _NOTHING
        self._of: dict[str | int, Staged] = {}

    def add(self, name: str, producer_id: int, more: Staged) -> None:
        """Count what comes, or goes when it is negative."""
        self.all = self.all.plus(more)
        for party in (name, producer_id):
            now = self._of.get(party, _NOTHING).plus(more)
            if any(now):
                self._of[party] = now
            else:
                self._of.pop(party, None)

    def of(self, party: str | int) -> Staged:
        """Return what a name has, or a producer."""
        return self._of.get(party, _NOTHING)


def check_room(limits: StagingLimits, counts: Sequence[StagedCount], name: str, producer_id: int, more: Staged) -> None:
    """Raise `SystemBusy` when there is no room for more."""
    of_all = of_name = of_producer = _NOTHING
    for count in counts:
        if count.all != _NOTHING:
            of_all, of_name = of_all.plus(count.all), of_name.plus(count.of(name))
            of_producer = of_producer.plus(count.of(producer_id))
    for at, limit in enumerate((limits.batches, limits.size, limits.parts)):
        wanted, free = more[at], limit - of_all[at]
        if not wanted:
            continue
        if wanted > free:
            raise SystemBusy(
                "staged batches wait for the end of their transactions, and there is no room for more "
                f"({_amount(at, limit)} at most): they go when these are committed, or expire, idle ones the "
                "sooner the less room there is; send larger batches, and commit or end open transactions",
                limit="staged",
            )
        if max(of_name[at], of_producer[at]) + wanted > free:
            is_name = of_name[at] + wanted > free
            words = f"transaction name {name!r}" if is_name else f"producer {producer_id:016x}"
            own = of_name[at] if is_name else of_producer[at]
            raise SystemBusy(
                f"{words} has {_amount(at, own)} that wait for the end of their transaction, and not more than "
                f"this is left for all others: commit or end open transactions, or send larger batches",
                limit="staged",
            )


def _amount(at: int, number: int) -> str:
    return (f"{number:,} staged batches", f"{number:,} bytes of staged batches", f"{number:,} open parts")[at]


@dataclass(frozen=True, slots=True)
class IdleExpiry:
    """Time after which a transaction expires for which nothing is staged any more."""

    #: That time while there is room enough, in ms.
    longest_ms: int
    #: That time when there is none, in ms.
    shortest_ms: int

    def idle_ms(self, fullness: float) -> int:
        """Return that time for a fullness of the room. It falls by the same factor with each step."""
        least = min(self.shortest_ms, self.longest_ms)
        part = min(max((fullness - _EARLY_FROM) / (_EARLIEST_AT - _EARLY_FROM), 0.0), 1.0)
        return round(self.longest_ms * math.pow(least / self.longest_ms, part))
