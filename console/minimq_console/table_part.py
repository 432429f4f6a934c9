"""A part of a long table: the rows that one page shows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

Row = TypeVar("Row")


class TablePart(msgspec.Struct, frozen=True):
    """The place of the rows that are shown in their table."""

    #: Number of rows before them.
    skipped: int
    shown: int
    total: int
    #: How many a page has at most.
    rows: int

    @property
    def previous(self) -> int | None:
        """The number of rows that the part before this one skips; None if this is the first."""
        return max(self.skipped - self.rows, 0) if self.skipped else None

    @property
    def next(self) -> int | None:
        """The number of rows that the part after this one skips; None if this is the last."""
        end = self.skipped + self.shown
        return end if end < self.total and self.shown else None


def part_of(rows: Sequence[Row], bounds: tuple[int, int]) -> tuple[Sequence[Row], TablePart]:
    """Return the rows of a part, and the part."""
    skip, count = bounds
    shown = rows[skip : skip + count]
    return shown, TablePart(min(skip, len(rows)), len(shown), len(rows), count)
