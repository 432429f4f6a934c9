"""Verifies a whole data directory or one segment: every checksum, every index row, every offset. Compares two logs."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import lmdb
import msgspec

from minimq_broker.features.feature import IndexRow
from minimq_broker.features.registry import FEATURES, index_rows_of
from minimq_broker.log.checkpoint import POSITION_KEY, ChangedRows, Checkpoint, check_saved_features, take_changes
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.data_dir import DataDirectory
from minimq_broker.log.entry import EntryHeader, EntryKind, opened, payload_of
from minimq_broker.log.rows import Row, last_offset_in, row_of
from minimq_broker.log.segment import Segment, is_segment
from minimq_broker.log.start_check import damaged, not_readable
from minimq_broker.state.facts import AtomicBegun
from minimq_broker.state.producers import BatchLocation, ProducerTable
from minimq_broker.state.state import QueueKey, State
from minimq_common.batch import header as batch
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import CorruptEntry, MinimqError, StoreError
from minimq_common.text_units import count_of

#: Kind of rows that is not compared: a broker forgets the oldest producers, and releases may keep different numbers.
_FORGOTTEN = "producer"


#: What to do about each kind of damage.
_SEALED = "slave: start it, it copies all from its master; else: the rest is served, or restore a backup"
_ACTIVE = "replica: minimq-broker rebuild; alone: restore a backup"
_CHECKPOINT = "start it: the state is rebuilt from the log"
_MIXED = "restore the directory as a whole; replica: minimq-broker rebuild"
_GROUP = "restore a backup, or minimq group reset-offset"
_MISNAMED = "move it away"
_OWNER = "delete it if the directory belongs to the broker that starts with it"


@dataclass(frozen=True, slots=True)
class Finding:
    file: str
    damage: str
    remedy: str
    #: Log position, if it is known.
    position: int | None = None

    def __str__(self) -> str:
        return f"{self.file}: {'' if self.position is None else f'position {self.position}: '}{self.damage}"


@dataclass
class Report:
    findings: list[Finding] = field(default_factory=list)
    entries: int = 0
    messages: int = 0
    segments: int = 0

    @property
    def summary(self) -> str:
        entries = count_of(self.entries, "entry", "entries")
        seen = f"{count_of(self.segments, 'segment')}, {entries}, {count_of(self.messages, 'message')}"
        return f"damaged: {count_of(len(self.findings), 'finding')} in {seen}" if self.findings else f"clean: {seen}"


def check_directory(path: Path, *, watch: Callable[[Sequence[Segment]], Iterable[Segment]] = iter) -> Report:
    """Verify a data directory that is not in use. `watch` may wrap the segments, to show progress."""
    directory = DataDirectory(path, create=False)
    report = Report()
    try:
        directory.check_whole()
        check_saved_features(directory.state_path, path)
        unreadable = _check_files(directory, report)
        _check_owner(directory, report)
        state_path = directory.state_path
        with closing(CommitLog(directory.log_path, 0, readonly=True, without=unreadable)) as log:
            saved = State() if state_path.name in unreadable else _saved(state_path)
            walk = _LogWalk(report, saved, is_whole=log.complete_from == 0)
            for segment in watch(log.segments):
                walk.segment_or_finding(segment)
            if state_path.name not in unreadable:
                _check_checkpoint(state_path, log, walk, report, is_whole=not unreadable)
    finally:
        directory.close()
    return report


def _check_files(directory: DataDirectory, report: Report) -> set[str]:
    # Returns the names of files that must not be opened.
    every = sorted(directory.log_path.glob("*.mdb"))
    segments = [*filter(is_segment, every)]
    strange = [file.name for file in every if not is_segment(file)]
    files = dict.fromkeys(segments, _SEALED)
    if segments:
        files[segments[-1]] = _ACTIVE
    if directory.state_path.exists():
        files[directory.state_path] = _CHECKPOINT
    found = damaged([*files])
    report.findings += [Finding(file.name, str(found[file]), files[file]) for file in files if file in found]
    report.findings += [Finding(name, "it is not named like a segment", _MISNAMED) for name in strange]
    return {file.name for file in not_readable(found)} | {*strange}


def _check_owner(directory: DataDirectory, report: Report) -> None:
    try:
        if directory.owner_path.exists():
            directory.owner()
    except StoreError as error:
        report.findings.append(Finding(directory.owner_path.name, error.message, _OWNER))


def _check_checkpoint(path: Path, log: CommitLog, walk: _LogWalk, report: Report, *, is_whole: bool) -> None:
    remedy = _CHECKPOINT if log.complete_from == 0 else _ACTIVE
    try:
        with closing(Checkpoint(path, readonly=True)) as checkpoint:
            state = checkpoint.load()
            for feature in FEATURES.values():
                report.findings += [Finding(path.name, text, _GROUP) for text in feature.findings(state)]
            if walk.replayed is not None and not report.findings:
                differences = _differences(take_changes(walk.replayed), checkpoint)
                moved = f"move {path.name} away, then {remedy}"
                report.findings += [Finding(path.name, text, moved) for text in differences]
        if is_whole and not log.start <= state.position <= log.end:
            text = f"at position {state.position}, but the log holds {log.start} to {log.end}"
            report.findings.append(Finding(path.name, text, _MIXED))
    except StoreError as error:
        report.findings.append(Finding(path.name, error.message, remedy))


def _differences(expected: ChangedRows, checkpoint: Checkpoint) -> Iterator[str]:
    by_log = {key: value for key, value in expected.rows if value is not None}
    found = {key: stored for key, stored in checkpoint.rows() if key != POSITION_KEY}
    for key in sorted(by_log.keys() | found.keys()):
        row = msgspec.msgpack.decode(key)
        if row[0] != _FORGOTTEN and found.get(key) != by_log.get(key):
            yield f"the row {row} is {'not as the log has it' if key in found else 'missing, but the log has it'}"


def _saved(path: Path) -> State:
    try:
        if path.exists():
            with closing(Checkpoint(path, readonly=True)) as checkpoint:
                return checkpoint.load()
    except StoreError:
        pass  # `_check_checkpoint` reports it
    return State()


class _LogWalk:
    def __init__(self, report: Report, saved: State, *, is_whole: bool) -> None:
        #: The result of the log up to the checkpoint; None if entries are missing.
        self.replayed = State() if is_whole else None
        self._audits = [audit for each in FEATURES.values() if (audit := each.audit()) is not None]
        #: The index rows of features that belong to the entries of the segment.
        self._index_rows: dict[tuple[str, bytes], IndexRow] = {}
        self._report = report
        self._saved = saved
        self._name_of = saved.name_of
        self._next_offset: dict[QueueKey, int] = {}
        #: Queues whose next batch may follow a gap, left by a rewriting.
        self._may_have_gap: set[QueueKey] = set()
        self._stored_ms: dict[QueueKey, int] = {}
        #: Has the same bounds as in a broker, so it detects exactly the repeats that the broker had to detect.
        self._producers = ProducerTable()
        self.position = -1
        self._atomic_end = 0

    def segment_or_finding(self, segment: Segment) -> None:
        """Verify a segment. An unreadable one is a finding, and does not keep the others from being verified."""
        try:
            self.segment(segment)
        except (lmdb.Error, struct.error) as error:
            self._find(segment, self.position, f"what follows cannot be read: {error}")

    def segment(self, segment: Segment) -> None:
        self._report.segments += 1
        if self.position not in (-1, segment.start):
            self._find(segment, self.position, f"a gap: the next segment starts at {segment.start}")
        self.position = segment.start
        if segment.rewritten_to:
            self.replayed = None
            self._may_have_gap.update(self._next_offset)
        self._verify_rows(segment, self._entries(segment))
        self._verify_index_rows(segment)
        if segment.rewritten_to:
            if self.position > segment.rewritten_to:
                self._find(segment, self.position, f"it is marked as ending at {segment.rewritten_to}")
            self.position = segment.rewritten_to
            self._may_have_gap.update(self._next_offset)
        if self._atomic_end > self.position:  # one commit writes it, to one segment
            self._find(segment, self.position, f"an atomic append is cut, which goes on to {self._atomic_end}")

    def _verify_rows(self, segment: Segment, expected: dict[tuple[QueueKey, int], Row]) -> None:
        for queue, key, value in segment.stored_rows():
            last = last_offset_in(key)
            row = expected.pop((queue, last), None)
            if row is None or (key, value) != row.pack(queue):
                position = -1 if row is None else row.position
                self._find(segment, position, f"the index row of queue {self._name_of(queue)} offset {last} is wrong")
        for (queue, last), row in expected.items():
            self._find(segment, row.position, f"queue {self._name_of(queue)} offset {last} has no index row")

    def _verify_index_rows(self, segment: Segment) -> None:
        expected, self._index_rows = self._index_rows, {}
        for name, index in segment.indexes.items():
            for row in index.rows():
                if expected.pop((name, row.key), None) != row:
                    self._find(segment, -1, f"the {name} row {row.key.hex()} is wrong")
        for (name, key), row in expected.items():
            self._find(segment, row.position, f"the {name} row {key.hex()} is missing")

    def _entries(self, segment: Segment) -> dict[tuple[QueueKey, int], Row]:
        rows: dict[tuple[QueueKey, int], Row] = {}
        for position, entry in segment.entries():
            self._report.entries += 1
            if position < self.position or (position > self.position and not segment.rewritten_to):
                self._find(segment, position, f"a gap: expected an entry at {self.position}")
            self.position = position + len(entry)
            try:
                self._entry(segment, position, entry, rows)
            except MinimqError as error:
                self._find(segment, position, error.message)
        return rows

    def _entry(self, segment: Segment, position: int, entry: memoryview, rows: dict[tuple[QueueKey, int], Row]) -> None:
        header, about, done = opened(entry, position, verified=True)
        if self.replayed is not None and position < self._saved.position:
            self.replayed.apply(done, self.position, header.stored_ms)
        self._index_rows.update(((row.table, row.key), row) for row in index_rows_of(done, position))
        for audit in self._audits:
            audit(done, position)
        if isinstance(done, AtomicBegun):
            self._atomic_end = max(self._atomic_end, self.position + done.size)
        if header.kind == EntryKind.FACT:
            return
        if about is not None:
            self._report.messages += about.count
            row = row_of(header, about, position, len(entry))
            rows[header.queue, row.last_offset] = row
            self._verify_place(header, about)
            if segment.rewritten_to:
                self._may_have_gap.add(header.queue)
        RecordBatch(bytes(payload_of(entry))).check_values()
        if about is not None and about.producer_id and header.kind == EntryKind.BATCH:
            self._verify_number(header, about)

    def _verify_place(self, header: EntryHeader, about: batch.Header) -> None:
        queue, first = header.queue, header.base_offset
        expected, stored_ms = self._next_offset.get(queue, first), self._stored_ms.get(queue, 0)
        self._next_offset[queue] = first + about.count
        self._stored_ms[queue] = header.stored_ms
        is_thinned = queue in self._may_have_gap
        self._may_have_gap.discard(queue)
        if first < expected or (first > expected and not is_thinned):
            raise CorruptEntry(f"queue {self._name_of(queue)} goes on at offset {first} where {expected} was expected")
        if header.stored_ms < stored_ms:
            raise CorruptEntry(f"queue {self._name_of(queue)} offset {first} was stored before the batch ahead of it")

    def _verify_number(self, header: EntryHeader, about: batch.Header) -> None:
        place = BatchLocation(*header.queue, header.base_offset, header.stored_ms)
        key = about.producer_id, place.topic_id, header.user
        former = self._producers.find(key, about.sequence)
        self._producers.add(key, about.sequence, about.settled_before, place, self.position)
        if former is not None:
            raise CorruptEntry(
                f"queue {self._name_of(header.queue)} offset {header.base_offset} is batch {about.sequence} of "
                f"producer {about.producer_id:016x} again, which is in queue {former.queue_id} at offset "
                f"{former.base_offset}"
            )

    def _find(self, segment: Segment, position: int, text: str) -> None:
        remedy = _SEALED if segment.sealed else _ACTIVE
        self._report.findings.append(Finding(segment.path.name, text, remedy, None if position < 0 else position))


@dataclass(frozen=True, slots=True)
class LogComparison:
    start: int
    end: int
    #: Length of the first log minus that of the second, in bytes.
    ahead: int
    entries: int
    #: One line about the first different entry; None if there is none.
    difference: str | None = None

    @property
    def summary(self) -> str:
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
