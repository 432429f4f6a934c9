"""Marks of damaged segments of a slave, which wait for their repair from its master.

A mark is an empty file beside the segment, so that a restarted slave knows about the damage, too: while there is one,
it does not report its log to the controller, and is not elected.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from minimq_broker.store.data_dir import sync_directory


class DamageMarks:
    """The marks of one log. Any thread may look; callers that change something hold the lock of the `CommitLog`."""

    def __init__(self, path: Path, starts: Collection[int], *, readonly: bool) -> None:
        self._path = path
        self.reasons: dict[int, str] = {}
        self.is_served = False
        for mark in sorted(path.glob("*.damaged")):
            if not mark.stem.isdecimal():  # of another program
                continue
            if int(mark.stem) in starts:
                self.reasons[int(mark.stem)] = "it was found damaged before the last start"
            elif not readonly:
                mark.unlink()

    def add(self, start: int, reason: str) -> bool:
        """Mark a segment, synced; return whether it was not marked before."""
        if start in self.reasons:
            return False
        self._mark(start).touch()
        sync_directory(self._path)
        self.reasons = {**self.reasons, start: reason}
        return True

    def discard(self, start: int) -> None:
        """Remove the mark of a segment, if it has one."""
        if start in self.reasons:
            self._mark(start).unlink(missing_ok=True)
            sync_directory(self._path)
            self.reasons = {each: reason for each, reason in self.reasons.items() if each != start}

    def refuses(self, start: int) -> bool:
        """Return whether others may not read a segment now."""
        return start in self.reasons and not self.is_served

    def _mark(self, start: int) -> Path:
        return self._path / f"{start:020d}.damaged"
