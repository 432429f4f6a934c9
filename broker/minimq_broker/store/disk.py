"""The disk of the data directory: how full it is, and whether batches may be written."""

from __future__ import annotations

import errno
import logging
import math
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import lmdb

from minimq_broker.core.upkeep.disk import DiskLevel, DiskUse, Watermarks
from minimq_common.errors import StoreFull

log = logging.getLogger(__name__)

#: Seconds for which the usage of a disk below all watermarks is cached.
_LOOK_AGAIN_S = 0.01
#: With less free space, a write of a group may succeed only in part.
_SCARCE_BYTES = 32 << 20


def is_full(error: BaseException, folder: Path) -> bool:
    """Return whether an error of writing to a folder means that its disk is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, StoreFull | lmdb.DiskError):
        return True
    # If only a part of a write fits, LMDB reports an input/output error, for which it has no class.
    return type(error) is lmdb.Error and shutil.disk_usage(folder).free < _SCARCE_BYTES


class Disk:
    """Watches how full the disk of one directory is. Thread-safe."""

    def __init__(self, path: Path, marks: Watermarks, risen: Callable[[], None]) -> None:
        self._risen = risen
        self._path = path
        self._marks = marks
        #: Guards the attributes below.
        self._lock = threading.Lock()
        self._latest = DiskUse(0, 0), DiskLevel.NORMAL
        self._looked_at = -math.inf

    @property
    def latest(self) -> tuple[DiskUse, DiskLevel]:
        """Usage and level at the latest check."""
        return self._latest

    def look(self) -> tuple[DiskUse, DiskLevel]:
        """Check how full the disk is; return usage and level. Raises `OSError`."""
        with self._lock:
            usage = shutil.disk_usage(self._path)
            use = DiskUse(usage.used, usage.free)
            before = self._latest[1]
            level = self._marks.level(use, before)
            self._latest = use, level
            self._looked_at = time.monotonic()
        if level != before:
            say = log.warning if level > before else log.info
            say("store: disk used=%.1f%% free=%d level=%s", 100 * use.ratio, use.free_bytes, level.name.lower())
        if level > before:
            self._risen()
        return use, level

    def excess_bytes(self) -> int:
        """Return how many bytes to delete early, before they expire; 0 if none. Raises `OSError`."""
        return self._marks.excess_bytes(*self.look())

    def refusal(self) -> StoreFull | None:
        """Return why no batch may be written now, or None."""
        if self._latest[1] == DiskLevel.NORMAL and time.monotonic() < self._looked_at + _LOOK_AGAIN_S:
            return None  # a check costs half as much as a small commit
        try:
            use, level = self.look()
        except OSError:  # the write will raise what is wrong
            return None
        if level < DiskLevel.REFUSE:
            return None
        return StoreFull(
            f"the disk of the broker is {use.ratio:.1%} full, and accepts nothing more from {self._marks.refuse:.0%} "
            "on (--disk-refuse): free space, then send again"
        )
