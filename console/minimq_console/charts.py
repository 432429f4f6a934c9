"""Figures of the last hour, in memory, and their charts: points of lines in an SVG image. Pure."""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

#: Seconds of one slot, and how many slots there are: an hour.
SLOT_S, SLOTS = 10, 360
#: Maximum number of series, of 1.5 KB each.
_MAX_SERIES = 8_000
#: Width and height of a chart, in units of its own.
WIDTH, HEIGHT = 360, 60
#: Maximum distance of two values that a line connects: topics are described in turn, not in each slot.
_MAX_GAP_SLOTS = 12
#: Round values, times a power of ten; up to 10, all whole numbers are round.
_FACTORS = (1, 2, 2.5, 3, 4, 5, 6, 8, 10)


class History:
    """The last hour of many figures by key, with the last value of each slot. Not thread-safe."""

    def __init__(self) -> None:
        self._series: dict[Hashable, array[float]] = {}
        self._newest = 0

    def record(self, figures: Mapping[Hashable, float | None], at: float) -> None:
        """Add the current figures; forget those that are absent, and those beyond the maximum number."""
        slot, former = int(at // SLOT_S), self._series
        passed = range(max(self._newest + 1, slot - SLOTS + 1), slot + 1)
        self._series = {}
        for key, value in islice(figures.items(), _MAX_SERIES):
            values = self._series[key] = former.get(key) or array("f", [math.nan]) * SLOTS
            for each in passed:
                values[each % SLOTS] = math.nan
            if value is not None:
                values[slot % SLOTS] = value
        self._newest = slot

    def points(self, key: Hashable, now: float) -> list[float | None]:
        """Return the values of the last hour, one for each slot, the oldest first; None where there is none."""
        values, last = self._series.get(key), int(now // SLOT_S)
        found = [
            math.nan if values is None or slot > self._newest else values[slot % SLOTS]
            for slot in range(last - SLOTS + 1, last + 1)
        ]
        return [None if math.isnan(value) else value for value in found]


@dataclass(frozen=True, slots=True)
class ChartLine:
    points: str
    area: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure over the last hour."""

    title: str
    #: Unit of its values, "messages/s" or "messages".
    unit: str
    #: One for each ten seconds, the oldest first; None where it is not known.
    values: tuple[float | None, ...]

    @property
    def last(self) -> float | None:
        return next((value for value in reversed(self.values) if value is not None), None)

    @property
    def highest(self) -> float | None:
        return max((value for value in self.values if value is not None), default=None)

    @property
    def top(self) -> float:
        """The value at the upper edge, a round one that is no less than each value."""
        return scale_of(self.highest or 0.0)

    @property
    def lines(self) -> list[ChartLine]:
        """The lines to draw; a gap ends a line."""
        return lines_of(self.values, self.top)


def scale_of(highest: float) -> float:
    """Return the upper edge for values up to this one."""
    if highest <= 10:
        return float(max(math.ceil(highest), 1))
    power = 10.0 ** math.floor(math.log10(highest))
    return next(factor * power for factor in _FACTORS if factor * power >= highest)


def lines_of(values: Sequence[float | None], top: float) -> list[ChartLine]:
    """Return the lines, each at least two points long, in a picture of `WIDTH` and `HEIGHT`."""
    step = WIDTH / max(len(values) - 1, 1)
    lines: list[list[tuple[float, float]]] = []
    before: int | None = None
    for slot, value in enumerate(values):
        if value is None:
            continue
        if before is None or slot - before > _MAX_GAP_SLOTS:
            lines.append([])
        lines[-1].append((slot * step, HEIGHT - value / top * HEIGHT))
        before = slot
    return [_line(points) for points in lines if len(points) > 1]


def _line(points: Sequence[tuple[float, float]]) -> ChartLine:
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return ChartLine(drawn, f"{points[0][0]:.1f},{HEIGHT} {drawn} {points[-1][0]:.1f},{HEIGHT}")
