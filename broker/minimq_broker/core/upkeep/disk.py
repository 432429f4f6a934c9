"""The fullness of the disk, and what a broker does about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

#: A level that was reached at 0.90 is left below 0.88, so that it does not come and go with every file.
_GAP = 0.02


@dataclass(frozen=True, slots=True)
class DiskUse:
    """The fullness of a disk."""

    used_bytes: int
    free_bytes: int

    @property
    def ratio(self) -> float:
        """The used part, from 0 to 1, as `df` tells it."""
        total = self.used_bytes + self.free_bytes
        return self.used_bytes / total if total else 1.0


class DiskLevel(IntEnum):
    """The level of fullness, which calls for something; each level includes those before it."""

    NORMAL = 0
    WARN = 1
    DELETE_EARLY = 2
    REFUSE = 3


@dataclass(frozen=True, slots=True)
class Watermarks:
    """From which used part of the disk on something is done, from 0 to 1; 1 stands for never."""

    warn: float = 0.75
    #: The oldest segments are deleted though they are not expired.
    delete_early: float = 0.85
    refuse: float = 0.90

    def level(self, use: DiskUse, before: DiskLevel = DiskLevel.NORMAL) -> DiskLevel:
        """Return the level of a disk whose level was `before`: one that was reached is left a little later."""
        ratio = use.ratio
        marks = (
            (DiskLevel.REFUSE, self.refuse),
            (DiskLevel.DELETE_EARLY, self.delete_early),
            (DiskLevel.WARN, self.warn),
        )
        for level, mark in marks:
            if mark < 1 and ratio >= (mark - _GAP if before >= level else mark):
                return level
        return DiskLevel.NORMAL

    def excess_bytes(self, use: DiskUse, level: DiskLevel) -> int:
        """Return how much has to be deleted for the level to fall below `DELETE_EARLY`; 0 when it is below."""
        if level < DiskLevel.DELETE_EARLY or self.delete_early >= 1:
            return 0
        total = use.used_bytes + use.free_bytes
        return max(use.used_bytes - math.ceil((self.delete_early - _GAP) * total) + 1, 0)


UNWATCHED = Watermarks(1.0, 1.0, 1.0)
