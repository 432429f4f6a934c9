"""Disk usage, and the reactions of a broker to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

#: Warn by so much before the disk reaches the first mark at which the broker acts.
_WARN_BEFORE = 0.10
#: Hysteresis: a level that is reached at 0.90 ends below 0.88, so that it does not flap with every file.
_GAP = 0.02


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Used and free bytes of a disk."""

    used_bytes: int
    free_bytes: int

    @property
    def ratio(self) -> float:
        """The used share, from 0 to 1, as `df` shows it."""
        total = self.used_bytes + self.free_bytes
        return self.used_bytes / total if total else 1.0


class DiskLevel(IntEnum):
    """The reaction of the broker to disk usage; each level includes those before it."""

    NORMAL = 0
    WARN = 1
    DELETE_EARLY = 2
    REJECT = 3


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The used share of the disk, from 0 to 1, at which each level begins; 1 means never."""

    #: Deletes the oldest segments although they have not expired.
    delete_early: float = 0.85
    reject: float = 0.90

    def level(self, use: DiskUse, before: DiskLevel = DiskLevel.NORMAL) -> DiskLevel:
        """Return the level of a disk whose level was `before`."""
        total = use.used_bytes + use.free_bytes
        first = min(self.delete_early, self.reject)
        marks = (
            (DiskLevel.REJECT, self.reject),
            (DiskLevel.DELETE_EARLY, self.delete_early),
            (DiskLevel.WARN, first - _WARN_BEFORE if first < 1 else first),
        )
        for level, mark in marks:
            if mark < 1 and use.used_bytes >= total * (mark - _GAP if before >= level else mark):
                return level
        return DiskLevel.NORMAL

    def excess_bytes(self, use: DiskUse, level: DiskLevel) -> int:
        """Return how many bytes to delete for the level to fall below `DELETE_EARLY`; 0 if it is below."""
        if level < DiskLevel.DELETE_EARLY or self.delete_early >= 1:
            return 0
        total = use.used_bytes + use.free_bytes
        return max(use.used_bytes - math.ceil((self.delete_early - _GAP) * total) + 1, 0)


UNWATCHED = Watermarks(1.0, 1.0)
