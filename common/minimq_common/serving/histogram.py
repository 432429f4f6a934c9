"""Histograms that cost one binary search per value."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence

#: Upper bounds in seconds, for durations that are mostly milliseconds.
SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
#: Upper bounds for numbers of things.
COUNTS = (1, 10, 100, 1_000, 10_000, 100_000)


class Histogram:
    """Counts values by size. One thread adds; any thread may read, and may see a count before its sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        #: Sum of all values.
        self.total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[float, int]]:
        """Return the number of values up to each bound; the last bound is infinity."""
        return list(zip((*self._bounds, float("inf")), itertools.accumulate(self._counts.copy()), strict=True))
