"""A new segment from entries of another replica, beside the damaged one that it will replace."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import lmdb

from minimq_broker.store.lmdb_file import remove_lmdb
from minimq_broker.store.segment import Segment
from minimq_broker.store.upkeep.copy import verified, writing


class SegmentCopy:
    """A segment in the making; used by one thread at a time."""

    def __init__(self, folder: Path, start: int, room_bytes: int) -> None:
        self.position = self.start = start
        self.has_gap = False
        self.path = folder / f"{start:020d}.new"
        with writing(folder):
            remove_lmdb(self.path)  # of one that was interrupted
            self._segment = Segment(self.path, start, room_bytes)

    def put(self, entries: Sequence[bytes]) -> None:
        """Add entries that begin at `position`, verified and synced."""
        places, rows, due = verified(entries, self.position)
        with writing(self.path.parent):
            self._segment.write(places, rows, due)
        self.position += sum(map(len, entries))

    def skip_to(self, position: int) -> None:
        """Go on at a later position, if it is one."""
        self.has_gap = self.has_gap or position > self.position
        self.position = position

    def finish(self) -> None:
        """Mark the segment if entries are missing, and close it. Raises as `put` does."""
        if self.has_gap:
            with writing(self.path.parent):
                self._segment.mark_rewritten(self.position)
        self.close()

    def close(self) -> None:
        """Close the file, which stays. Idempotent."""
        with suppress(lmdb.Error):
            self._segment.close()

    def give_up(self) -> None:
        """Close and delete the file, unless it has its place by now."""
        self.close()
        remove_lmdb(self.path)
