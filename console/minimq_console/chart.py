"""Charts of the last hour, as the points of lines in an SVG picture. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

#: Width and height of a chart, in units of its own.
WIDTH, HEIGHT = 360, 60
#: Slots without a value over which a line goes on: topics are looked at in turn.
_BRIDGED = 12


class Chart(msgspec.Struct, frozen=True):
    """A figure over the last hour.

    Attributes:
        title: names the figure.
        unit: of its values, "messages/s" or "messages".
        values: one for each ten seconds, the oldest first; None where it is not known.
    """

    title: str
    unit: str
    values: tuple[float | None, ...]

    @property
    def last(self) -> float | None:
        """The newest known value."""
        return next((value for value in reversed(self.values) if value is not None), None)

    @property
    def highest(self) -> float | None:
        """The largest value."""
        return max((value for value in self.values if value is not None), default=None)

    @property
    def lines(self) -> list[str]:
        """The points of the lines to draw, as SVG wants them; a gap ends a line."""
        return lines_of(self.values)


def lines_of(values: Sequence[float | None]) -> list[str]:
    """Return the points of each line, which is at least two points long, in a picture of `WIDTH` and `HEIGHT`."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    step = WIDTH / max(len(values) - 1, 1)
    lines: list[list[str]] = []
    before: int | None = None
    for number, value in enumerate(values):
        if value is None:
            continue
        if before is None or number - before > _BRIDGED:
            lines.append([])
        lines[-1].append(f"{number * step:.1f},{HEIGHT - value / top * (HEIGHT - 2) - 1:.1f}")
        before = number
    return [" ".join(line) for line in lines if len(line) > 1]
