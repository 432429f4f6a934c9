"""Figures of the last hour, in memory. Pure: the time is an argument."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Hashable

#: Seconds of one slot, and how many slots there are: an hour.
SLOT_S, SLOTS = 10, 360
#: Series that are kept at most, of 1.5 KB each.
_MOST_SERIES = 8_000

_EMPTY = math.nan


class History:
    """The last hour of many figures, each known by a key. Not thread-safe.

    A figure has one value in each slot of ten seconds, the last that was added there. Keys beyond the bound are not
    kept.
    """

    def __init__(self) -> None:
        self._series: dict[Hashable, tuple[array[float], list[int]]] = {}

    def add(self, key: Hashable, value: float | None, at: float) -> None:
        """Add what a figure was."""
        if value is None:
            return
        if key not in self._series:
            if len(self._series) >= _MOST_SERIES:
                return
            self._series[key] = array("f", [_EMPTY]) * SLOTS, [int(at // SLOT_S)]
        values, newest = self._series[key]
        slot = int(at // SLOT_S)
        self._forget(values, newest, slot)
        if slot > newest[0] - SLOTS:
            values[slot % SLOTS] = value

    def points(self, key: Hashable, now: float) -> list[float | None]:
        """Return the values of the last hour, one for each slot, the oldest first; None where there is none."""
        if key not in self._series:
            return [None] * SLOTS
        values, newest = self._series[key]
        last = int(now // SLOT_S)
        found: list[float | None] = []
        for slot in range(last - SLOTS + 1, last + 1):
            value = values[slot % SLOTS] if newest[0] - SLOTS < slot <= newest[0] else _EMPTY
            found.append(None if math.isnan(value) else value)
        return found

    def keep(self, keys: Collection[Hashable]) -> None:
        """Forget all figures but these."""
        self._series = {key: series for key, series in self._series.items() if key in keys}

    @staticmethod
    def _forget(values: array[float], newest: list[int], slot: int) -> None:
        for passed in range(max(newest[0] + 1, slot - SLOTS + 1), slot + 1):
            values[passed % SLOTS] = _EMPTY
        newest[0] = max(newest[0], slot)
