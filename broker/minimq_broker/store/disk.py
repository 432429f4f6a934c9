"""The disk that the data directory is on: how full it is now, and whether batches may still be written to it."""

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

#: Time after which a disk that is far from full is looked at again before a batch is written, in seconds.
_LOOK_AGAIN_S = 0.01
#: With less than this free a write of a group may find only room for a part of it.
_SCARCE_BYTES = 32 << 20


def is_full(error: BaseException, folder: Path) -> bool:
    """Tell whether something could not be written for want of space, by what was raised and the folder it was for."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, StoreFull | lmdb.DiskError):
        return True
    # LMDB calls it an input/output error, for which it has no class, when only a part of a write still fits.
    return type(error) is lmdb.Error and shutil.disk_usage(folder).free < _SCARCE_BYTES


class Disk:
    """Watches the disk of one directory. Thread-safe."""

    def __init__(self, path: Path, marks: Watermarks, risen: Callable[[], None]) -> None:
        self._risen = risen
        self._path = path
        self._marks = marks
        #: Protects what follows.
        self._lock = threading.Lock()
        self._latest = DiskUse(0, 0), DiskLevel.NORMAL
        self._looked_at = -math.inf

    @property
    def latest(self) -> tuple[DiskUse, DiskLevel]:
        """The result of the latest look."""
        return self._latest

    def look(self) -> tuple[DiskUse, DiskLevel]:
        """Return how full the disk is, and what that calls for. Raises `OSError`."""
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
        """Return how much has to be deleted though it is not expired; 0 when nothing has to. Raises `OSError`."""
        return self._marks.excess_bytes(*self.look())

    def refusal(self) -> StoreFull | None:
        """Return why no batch may be written now, None when it may."""
        if self._latest[1] == DiskLevel.NORMAL and time.monotonic() < self._looked_at + _LOOK_AGAIN_S:
            return None  # a look costs as much as half of a small commit
        try:
            use, level = self.look()
        except OSError:  # the write will tell what is wrong
            return None
        if level < DiskLevel.REFUSE:
            return None
        return StoreFull(
            f"the disk of the broker is {use.ratio:.1%} full, and accepts nothing more from {self._marks.refuse:.0%} "
            "on (--disk-refuse): free space, then send again"
        )
