"""Compares the logs of two replicas byte by byte."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import lmdb

from minimq_broker.store.commit_log import CommitLog
from minimq_broker.store.data_dir import DataDirectory
from minimq_common.errors import StoreError
from minimq_common.words import count_of


@dataclass(frozen=True, slots=True)
class LogComparison:
    """The result of a comparison."""

    start: int
    end: int
    #: Length of the first log minus that of the second, in bytes.
    ahead: int
    entries: int
    #: One line about the first different entry; None if there is none.
    difference: str | None = None

    @property
    def summary(self) -> str:
        """The result in one line."""
        if self.difference is not None:
            return f"different: {self.difference}"
        if self.start >= self.end:
            return "nothing to compare: no position is in both logs"
        same = f"the same: {count_of(self.entries, 'entry', 'entries')}, from position {self.start} to {self.end}"
        if not self.ahead:
            return f"{same}, where both logs end"
        return f"{same}; the {'first' if self.ahead > 0 else 'second'} log is {abs(self.ahead)} bytes longer"


def compare_directories(path: Path, other: Path) -> LogComparison:
    """Compare the entries of two data directories that are not in use, over the positions that both have."""
    with ExitStack() as opened:
        try:
            return _compare(_open(path, opened), _open(other, opened))
        except lmdb.Error as error:
            raise StoreError(f"{path} and {other} cannot be compared: {error}: run minimq-broker check") from None


def _open(path: Path, opened: ExitStack) -> CommitLog:
    directory = DataDirectory(path, create=False)
    opened.callback(directory.close)
    return opened.enter_context(closing(CommitLog(directory.log_path, 0, readonly=True)))


def _compare(mine: CommitLog, other: CommitLog) -> LogComparison:
    start, end = max(mine.complete_from, other.complete_from), min(mine.end, other.end)
    entries = 0
    for left, right in zip_longest(mine.entries(start), other.entries(start)):
        if min(place[0] for place in (left, right) if place is not None) >= end:
            break
        difference = _difference(left, right)
        if difference is not None:
            return LogComparison(start, end, mine.end - other.end, entries, difference)
        entries += 1
    return LogComparison(start, end, mine.end - other.end, entries)


def _difference(left: tuple[int, memoryview] | None, right: tuple[int, memoryview] | None) -> str | None:
    if left is None or (right is not None and right[0] < left[0]):
        assert right is not None  # one of the logs is longer
        return f"position {right[0]}: only the second log has an entry that begins there"
    if right is None or left[0] < right[0]:
        return f"position {left[0]}: only the first log has an entry that begins there"
    if bytes(left[1]) != bytes(right[1]):
        return f"position {left[0]}: the entries differ"
    return None
