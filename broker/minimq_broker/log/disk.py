"""The disk of the data directory: how full it is, whether batches may be written, and why a write had no room."""

from __future__ import annotations

import errno
import logging
import math
import os
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from minimq_broker.log.disk_levels import DiskLevel, DiskUse, Watermarks
from minimq_common.errors import StoreError, StoreFull

log = logging.getLogger(__name__)

#: Seconds for which the usage of a disk below all watermarks is cached.
_LOOK_AGAIN_S = 0.01
#: With less free space, a write of a group may succeed only in part.
_SCARCE_BYTES = 32 << 20


#: Errors that end once there is room again, so the store only rejects: what is used up, and the remedy.
_SHORTAGES = {
    errno.ENOSPC: ("the disk of {} is full", "free space"),
    errno.EDQUOT: ("the disk quota of {} is used up", "raise it or free space"),
    errno.EFBIG: (
        "a file of {} has reached the file-size limit",
        "raise it (ulimit -f, LimitFSIZE), or set --segment-bytes well below it",
    ),
    errno.EMFILE: (
        "{} has reached its limit of open files",
        "raise it (ulimit -n, LimitNOFILE), or set a larger --segment-bytes",
    ),
    errno.ENFILE: ("the machine of {} has reached its limit of open files", "raise it (sysctl fs.file-max)"),
    errno.ENOMEM: (
        "{} cannot map another file into memory",
        "raise its limit of address space (ulimit -v) or the sysctl vm.max_map_count",
    ),
}
_CODES = {os.strerror(code): code for code in (*_SHORTAGES, errno.EIO)}
_PARTLY_WRITTEN = (errno.ENOSPC, errno.EDQUOT)


def no_room(error: BaseException, folder: Path, owner: object = "the broker") -> StoreFull | None:
    """Return the error for callers if a file of a folder could not be opened or grow for lack of room, else None."""
    if isinstance(error, StoreFull):
        return error
    if isinstance(error, lmdb.Error):  # its text ends with that of the system
        code = _CODES.get(str(error).rpartition(": ")[2])
    else:
        code = error.errno if isinstance(error, OSError) else None
    if code == errno.EIO:
        code = _cause_of_partial_write(folder)
    if code not in _SHORTAGES:
        return None
    what, remedy = _SHORTAGES[code]
    return StoreFull(f"{what.format(owner)} ({error}): {remedy}")


def _cause_of_partial_write(folder: Path) -> int | None:
    # If only a part of a write fits, LMDB reports an input/output error.
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    sizes = (file.stat().st_size for file in folder.iterdir())
    if most != resource.RLIM_INFINITY and max(sizes, default=0) > most - _SCARCE_BYTES:
        return errno.EFBIG
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            os.posix_fallocate(probe.fileno(), 0, _SCARCE_BYTES)
    except OSError as error:
        return error.errno if error.errno in _PARTLY_WRITTEN else None
    return None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Translate errors of writing to a directory to `StoreFull` or `StoreError`."""
    try:
        yield
    except (OSError, lmdb.Error) as error:
        raise no_room(error, path, path) or StoreError(f"{path} cannot be written: {error}") from error


class Disk:
    """Watches how full the disk of one directory is. Thread-safe."""

    def __init__(self, path: Path, marks: Watermarks, risen: Callable[[], None]) -> None:
        self._risen = risen
        self._path = path
        self._marks = marks
        #: Guards the attributes below.
        self._lock = threading.Lock()
        self.latest = DiskUse(0, 0), DiskLevel.NORMAL
        self._looked_at = -math.inf
        self.total_bytes = shutil.disk_usage(path).total

    def look(self) -> tuple[DiskUse, DiskLevel]:
        """Check how full the disk is; return usage and level. Raises `OSError`."""
        with self._lock:
            usage = shutil.disk_usage(self._path)
            use = DiskUse(usage.used, usage.free)
            before = self.latest[1]
            level = self._marks.level(use, before)
            self.latest = use, level
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

    def rejection(self) -> StoreFull | None:
        """Return why no batch may be written now, or None."""
        if self.latest[1] == DiskLevel.NORMAL and time.monotonic() < self._looked_at + _LOOK_AGAIN_S:
            return None  # a check costs half as much as a small commit
        try:
            use, level = self.look()
        except OSError:  # the write will raise what is wrong
            return None
        if level < DiskLevel.REJECT:
            return None
        return StoreFull(
            f"the disk of the broker is {use.ratio:.1%} full, and accepts nothing more from {self._marks.reject:.0%} "
            "on (--disk-reject): free space, then send again"
        )
