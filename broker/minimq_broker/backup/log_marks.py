"""Marks next to the segments of a log: empty files named by a log position.

`N.first` records where the log begins, so that a start and `check` notice if the first segments are missing. It is
written before each deletion. The first segment starts after it only if another program has deleted segments.

`N.damaged` marks a sealed segment as damaged. A start verifies such a segment first. A slave copies everything from its
master; until then it does not report its log to the controller, and so is not elected.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from minimq_common.files.synced_files import sync_directory

log = logging.getLogger(__name__)


def missing_before(folder: Path, start: int) -> str:
    """Describe what is missing before the first segment, which begins at `start`; "" if nothing or unknown."""
    recorded = max((int(mark.stem) for mark in _firsts(folder)), default=start)
    if start <= recorded:
        return ""
    return f"log positions {recorded} to {start} are missing: the segments that held them were deleted or moved away"


def record_log_start(folder: Path, start: int) -> str:
    """Record where the log begins; if segments before it are missing, log and return that instead."""
    if missing := missing_before(folder, start):
        log.error(
            "store: %s path=%s: put them back, or restore the data directory from a copy; if there are other "
            "replicas, use minimq-broker rebuild",
            missing,
            folder,
        )
    else:
        keep(folder, start)
    return missing


def keep(folder: Path, start: int) -> None:
    """Record where a log begins, and sync. After a failure there is no record, which is better than a wrong one."""
    mark, former = folder / f"{start:020d}.first", _firsts(folder)
    if former == [mark]:
        return
    others = [each for each in former if each != mark]
    try:
        for other in others[:1]:
            other.rename(mark)  # needs no disk space, so segments of a full disk can be deleted
        mark.touch()
        for other in others[1:]:
            other.unlink(missing_ok=True)
        sync_directory(folder)
    except OSError as error:
        log.debug("store: not recorded where the log begins path=%s error=%s", mark, error)
        for other in _firsts(folder):
            with suppress(OSError):
                other.unlink()


def _firsts(folder: Path) -> list[Path]:
    return [mark for mark in folder.glob("*.first") if mark.stem.isdecimal()]


class DamageMarks:
    """The damage marks of one log. Any thread may read; callers of `add` and `discard` hold `CommitLog.kept`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: A reason by the start of each damaged segment.
        self.reasons: dict[int, str] = {}
        marks = [int(mark.stem) for mark in path.glob("*.damaged") if mark.stem.isdecimal()]
        self.reasons = dict.fromkeys(marks, "it was found damaged before the last start")

    def add(self, start: int, reason: str) -> bool:
        """Mark a segment, and sync; return False if it is already marked."""
        is_new = start not in self.reasons
        with suppress(OSError):  # on a full disk the next verification finds it again
            self._mark(start).touch()
            sync_directory(self._path)
        self.reasons = {**self.reasons, start: reason}
        return is_new

    def discard(self, start: int) -> None:
        """Remove the mark of a segment, if it has one."""
        if start in self.reasons:
            self._mark(start).unlink(missing_ok=True)
            sync_directory(self._path)
            self.reasons = {each: reason for each, reason in self.reasons.items() if each != start}

    def _mark(self, start: int) -> Path:
        return self._path / f"{start:020d}.damaged"
