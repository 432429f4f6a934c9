"""Verification of a whole data directory: every checksum, every index row, every offset."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import lmdb
from rich.console import Console
from rich.progress import Progress

from minimq_broker.core.state import QueueKey
from minimq_broker.store.checkpoint import Checkpoint
from minimq_broker.store.commit_log import CommitLog
from minimq_broker.store.data_dir import DataDirectory
from minimq_broker.store.entry import HEADER_BYTES, Kind, read_header
from minimq_broker.store.segment import Row, Segment
from minimq_common import batch
from minimq_common.errors import MiniMQError


@dataclass
class Report:
    """What a check has found.

    Attributes:
        findings: one line for each thing that is wrong.
        entries: number of entries that were looked at.
        messages: number of messages in them.
        segments: number of segments.
    """

    findings: list[str] = field(default_factory=list)
    entries: int = 0
    messages: int = 0
    segments: int = 0

    @property
    def summary(self) -> str:
        """One line that says how it went."""
        seen = f"{self.segments} segments, {self.entries} entries, {self.messages} messages"
        return f"damaged: {len(self.findings)} findings in {seen}" if self.findings else f"clean: {seen}"


def check_directory(path: Path, *, progress: bool = False) -> Report:
    """Verify a data directory that no broker has open.

    Args:
        path: the directory.
        progress: show a progress bar on stderr.

    Raises:
        StoreError: it is no data directory, is in use, or is of another version.
    """
    directory = DataDirectory(path, create=False)
    report = Report()
    try:
        log = CommitLog(directory.log_path, 0, readonly=True)
        with Progress(console=Console(stderr=True), disable=not progress, transient=True) as bar:
            task = bar.add_task("verifying", total=max(log.end - log.start, 1))
            walk = _Walk(report)
            for segment in log.segments:
                walk.segment(segment)
                bar.update(task, completed=walk.position - log.start)
        _check_checkpoint(directory.state_path, log, report)
        log.close()
    except lmdb.Error as error:
        report.findings.append(f"LMDB cannot read the directory: {error}")
    finally:
        directory.close()
    return report


def _check_checkpoint(path: Path, log: CommitLog, report: Report) -> None:
    checkpoint = Checkpoint(path, readonly=True)
    saved = checkpoint.load().position
    checkpoint.close()
    if not log.start <= saved <= log.end:
        report.findings.append(f"checkpoint: at position {saved}, but the log holds {log.start} to {log.end}")


class _Walk:
    """A walk through the log, segment after segment."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._next_offset: dict[QueueKey, int] = {}
        self._stored_ms: dict[QueueKey, int] = {}
        self.position = -1

    def segment(self, segment: Segment) -> None:
        self._report.segments += 1
        if self.position not in (-1, segment.start):
            self._find(segment, self.position, f"a gap: the next segment starts at {segment.start}")
        self.position = segment.start
        expected = dict(self._entries(segment))
        for queue, row in segment.rows():
            if expected.pop((queue, row.last_offset), None) != row:
                self._find(segment, row.position, f"the index row of queue {queue} offset {row.last_offset} is wrong")
        for (queue, last), row in expected.items():
            self._find(segment, row.position, f"queue {queue} offset {last} has no index row")

    def _entries(self, segment: Segment) -> list[tuple[tuple[QueueKey, int], Row]]:
        """Verify the entries of a segment and return the index rows that it must have."""
        rows = []
        for position, entry in segment.entries():
            self._report.entries += 1
            if position != self.position:
                self._find(segment, position, f"a gap: expected an entry at {self.position}")
            self.position = position + len(entry)
            try:
                row = self._verified(position, entry)
            except MiniMQError as error:
                self._find(segment, position, error.message)
                continue
            if row is not None:
                rows.append(row)
        return rows

    def _verified(self, position: int, entry: memoryview) -> tuple[tuple[QueueKey, int], Row] | None:
        header = read_header(entry, position)
        if header.kind != Kind.BATCH:
            return None
        data = bytes(entry[HEADER_BYTES:])
        about = batch.read_header(data)
        queue, last = header.queue, header.base_offset + about.count - 1
        self._report.messages += about.count
        row = Row(
            last,
            position,
            len(entry),
            about.count,
            header.stored_ms,
            about.born_first_ms,
            about.born_last_ms,
            about.tag_hashes,
        )
        expected = self._next_offset.get(queue, header.base_offset)
        self._next_offset[queue] = last + 1
        if header.base_offset != expected:
            raise MiniMQError(f"queue {queue} goes on at offset {header.base_offset} where {expected} was expected")
        if header.stored_ms < self._stored_ms.get(queue, 0):
            raise MiniMQError(f"queue {queue} offset {header.base_offset} was stored before the batch ahead of it")
        self._stored_ms[queue] = header.stored_ms
        batch.RecordBatch(data)
        return (queue, last), row

    def _find(self, segment: Segment, position: int, text: str) -> None:
        self._report.findings.append(f"{segment.path.name}: position {position}: {text}")
