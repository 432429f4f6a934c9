"""Room for staged batches: how many may wait for the end of their transactions, and for how long.

Whoever stages most leaves as much room as it has: a name, or a producer, may have as many batches, bytes and open
parts as are free. So no single one fills the room, and ten greedy ones still leave a part to the eleventh.

The fuller the room is, the sooner transactions go on which nobody works any more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

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


class Staged(msgspec.Struct, gc=False):
    """An amount of what is staged; see `StagingLimits`."""

    batches: int = 0
    size: int = 0
    parts: int = 0

    def fullness(self, limits: StagingLimits) -> float:
        """Return how full the room is, from 0 to 1: by whatever is scarcest."""
        return max(self.batches / limits.batches, self.size / limits.size, self.parts / limits.parts)


_NOTHING = Staged()
#: How an amount of each is called in errors.
_UNITS = {"batches": "staged batches", "size": "bytes of staged batches", "parts": "open parts"}


class StagedCount:
    """Counts what is staged: all of it, and what each name and each producer has."""

    def __init__(self) -> None:
        #: None stands for all of them. Without those that have nothing.
        self.parties: dict[str | int | None, Staged] = {}

    @property
    def all(self) -> Staged:
        """All that is staged."""
        return self.parties.get(None, _NOTHING)

    def add(self, name: str, producer_id: int, batches: int, size: int, parts: int = 0) -> None:
        """Count what comes, or goes when it is negative."""
        for party in (None, name, producer_id):
            own = self.parties.setdefault(party, Staged())
            own.batches += batches
            own.size += size
            own.parts += parts
            if not own.batches and not own.parts:
                del self.parties[party]


def check_room(limits: StagingLimits, counts: Sequence[StagedCount], name: str, producer_id: int, more: Staged) -> None:
    """Raise `SystemBusy` when there is no room for more."""
    for unit, words in _UNITS.items():
        wanted, limit = getattr(more, unit), getattr(limits, unit)
        of_all = _amount(counts, None, unit)
        free = limit - of_all
        if not wanted or of_all + wanted <= free:  # one party has no more than all together
            continue
        of_name, of_producer = _amount(counts, name, unit), _amount(counts, producer_id, unit)
        if wanted > free:
            raise SystemBusy(
                "staged batches wait for the end of their transactions, and there is no room for more "
                f"({limit:,} {words} at most): they go when these are committed, or expire, idle ones the "
                "sooner the less room there is; send larger batches, and commit or end open transactions",
                limit="staged",
            )
        if max(of_name, of_producer) + wanted > free:
            is_name = of_name + wanted > free
            party = f"transaction name {name!r}" if is_name else f"producer {producer_id:016x}"
            own = of_name if is_name else of_producer
            raise SystemBusy(
                f"{party} has {own:,} {words} that wait for the end of their transaction, and not more than "
                f"this is left for all others: commit or end open transactions, or send larger batches",
                limit="staged",
            )


def _amount(counts: Sequence[StagedCount], party: str | int | None, unit: str) -> int:
    amount = 0
    for count in counts:
        amount += getattr(count.parties.get(party, _NOTHING), unit)
    return amount


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
