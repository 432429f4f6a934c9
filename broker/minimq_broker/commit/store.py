"""The store: the data directory of a broker, which can be emptied, cut or replaced by a copy while the broker runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import lmdb

from minimq_broker.backup.copy import StoreCopy
from minimq_broker.commit.confirmation import Confirmation
from minimq_broker.commit.jobs import FactJob, Notify
from minimq_broker.commit.replica_features import ReplicaFeatures
from minimq_broker.commit.writer import Writer, term_begun
from minimq_broker.features.feature import Pins
from minimq_broker.features.registry import FEATURES
from minimq_broker.log.checkpoint import Snapshot, check_saved_features, position_of
from minimq_broker.log.clock import TOLERANCE_MS, now_ms
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.data_dir import DataDirectory, Owner
from minimq_broker.log.disk import Disk
from minimq_broker.log.disk_levels import UNWATCHED, Watermarks
from minimq_broker.log.entry import atomic_size
from minimq_broker.log.lmdb_file import DamagedFile
from minimq_broker.log.recovery import open_state
from minimq_broker.log.rewriting import Rewriting
from minimq_broker.log.rows import ReadLimits, StoredBatch
from minimq_broker.state.queue_ends import NO_MESSAGES
from minimq_broker.state.state import QueueEnd, QueueKey, State
from minimq_common.errors import CopyInterrupted, CopyNeeded, CorruptEntry, SystemBusy

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreOptions:
    segment_bytes: int = 1 << 30
    checkpoint_interval_s: float = 5.0
    watermarks: Watermarks = UNWATCHED
    #: Time that a message waits for replicas. As long as a slave may lag before it leaves the in-sync set.
    replication_timeout_s: float = 5.0
    owner: Owner | None = None


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The status of a log; by default that of an empty one."""

    last_term: int = 0
    end: int = 0
    confirmed: int = 0
    #: The disk failed: the store rejects everything until the broker restarts.
    has_failed: bool = False
    log_id: str = ""


class Store:
    """The open data directory of a broker. Any thread may submit to its writer and read.

    A truncation replaces the state, and a copy from a master replaces everything: readers are rejected meanwhile.
    """

    def __init__(
        self,
        path: Path,
        notify: Notify,
        options: StoreOptions,
        clock_ms: Callable[[], int] = now_ms,
        *,
        alone: bool = True,
        grown: Callable[[], None] | None = None,
        disk_filled: Callable[[], None] = lambda: None,
    ) -> None:
        """Open and recover a data directory. Callbacks are called on any thread, and must neither block nor fail."""
        self.path, self.options, self._alone = path, options, alone
        self._notify, self._grown, self._disk_filled, self._clock_ms = notify, grown, disk_filled, clock_ms
        #: What replicas announce; a master without any may use all features.
        self.replica_features = ReplicaFeatures()
        #: Why the store is not readable; None if it is.
        self._rejection: str | None = None
        #: The number of reading threads. The condition guards it, and whether more may begin.
        self._readers = 0
        self._readers_changed = threading.Condition()
        self._files = ExitStack()
        self.open()

    def open(self) -> None:
        """Open the directory again after `close_files`. Blocks."""
        try:
            self._open()
        except CopyInterrupted:
            if self._alone:
                raise
            log.warning("store: emptied, since the copy of the master was interrupted path=%s", self.path)
            StoreCopy(self.path, Snapshot(0, []), 0, self.options.segment_bytes, replace=True).finish()
            self._open()

    def _open(self) -> None:
        with ExitStack() as files:
            directory = DataDirectory(self.path, create=True, owner=self.options.owner)
            files.callback(directory.close)
            directory.check_whole()
            try:
                verified = check_saved_features(directory.state_path, self.path)
                self.log = CommitLog(directory.log_path, self.options.segment_bytes, self._name_of)
                files.callback(self.log.close)
                timeout_s = self.options.replication_timeout_s
                self.confirmation = Confirmation(self._notify, waits=not self._alone, timeout_s=timeout_s)
                waiting = None if self._alone else self.confirmation
                self._checkpoint, state = open_state(directory.state_path, self.log, waiting, verified=verified)
                files.callback(self._checkpoint.close)
            except lmdb.Error as error:
                text = f"cannot open the store in {self.path}: {error}: run minimq-broker check {self.path}"
                raise DamagedFile(text) from error
            self.disk = Disk(self.path, self.options.watermarks, self._disk_filled)
            #: Changes log and state. Has the latest state also while readers are rejected.
            self.writer = Writer(
                self.log,
                state,
                self._checkpoint,
                self.confirmation,
                clock_ms=self._clock_ms,
                disk=self.disk,
                replicas=self.replica_features,
                grown=None if self._alone else self._grown,
                checkpoint_interval_s=self.options.checkpoint_interval_s,
                leads=self._alone,
            )
            #: Term of a broker without replicas, even if its begin cannot be written, else that of the log.
            self.term = state.term + self._alone
            self.writer.start()
            files.callback(self.writer.stop)
            self._files = files.pop_all()
        self.is_open = True
        if self._alone:
            self.writer.submit(FactJob(partial(term_begun, self.term)))

    def _name_of(self, queue: QueueKey) -> str:
        return self.writer.state.name_of(queue)

    def close(self) -> None:
        """Commit the submitted jobs, save the state and close all files for good, after the last reader. Idempotent."""
        self.reject_readers(self._rejection or "this broker stops")
        self.close_files()

    def close_files(self) -> None:
        """Commit the submitted jobs, save the state and close all files, after the last reader. Blocks."""
        self._wait_for_readers()
        self.is_open = False
        self._files.close()

    # ---- readers ----------------------------------------------------------------------------------------

    def reject_readers(self, why: str) -> None:
        """Raise `SystemBusy` in all who begin to read from now on."""
        with self._readers_changed:
            self._rejection = why

    def accept_readers(self) -> None:
        """Let readers begin again, if the store is open."""
        self._rejection = None if self.is_open else "this broker could not open its store; its log has the reason"

    @property
    def is_readable(self) -> bool:
        return self._rejection is None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep the store open and unreplaced while a thread other than the loop's reads it. Raises `SystemBusy`."""
        with self._readers_changed:
            if self._rejection is not None:
                raise SystemBusy(self._rejection)
            self._readers += 1
        try:
            yield
        finally:
            with self._readers_changed:
                self._readers -= 1
                self._readers_changed.notify_all()

    def _wait_for_readers(self) -> None:
        with self._readers_changed:
            self._readers_changed.wait_for(lambda: not self._readers)

    def truncate(self, position: int) -> None:
        """Delete all entries from a log position on, after the last reader. Blocks. Crash-safe: can be repeated."""
        self._wait_for_readers()
        self.writer.truncate(position)

    @property
    def status(self) -> LogStatus:
        """The status of the log; an empty one while the store is not readable. Reads no file."""
        if self._rejection is not None:
            return LogStatus()
        state = self.state
        return LogStatus(state.term, state.position, self.confirmed, self.writer.has_failed, state.log_id)

    @property
    def damage(self) -> Mapping[int, str]:
        """The damaged segments, as in `CommitLog.damage`; none while the store is not readable."""
        return self.log.damage if self.is_readable else {}

    @property
    def saved_position(self) -> int:
        """Log position of the checkpoint: recovery needs the entries from there on."""
        return self.state.saved_topics.position  # changes last: pins are of this state or of a later one

    # ---- old segments -----------------------------------------------------------------------------------

    def pins(self) -> list[Pins]:
        """Return what features need of the log by the saved state. Any thread may call this."""
        state = self.state
        return [*filter(None, (each.pins(state, self.log) for each in FEATURES.values()))]

    def remove_first(self, needed_from: int) -> bool:
        """Remove the oldest segment; return False if others need it, from a log position on, or this store does."""
        with self.log.kept:
            is_pinned = any(pins.bytes_in(self.log.segments[0]) for pins in self.pins())
            return not is_pinned and self.log.remove_first(min(needed_from, self.saved_position))

    def put_in_place(self, rewriting: Rewriting, needed_from: int) -> bool:
        """Put a rewritten segment in place; return False if the former ones are still needed or have changed."""
        with self.log.kept:
            return rewriting.end <= min(needed_from, self.saved_position) and rewriting.put_in_place()

    # ---- state -------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The current state, read-only. A truncation replaces the object. Raises `SystemBusy` if it is not readable."""
        if self._rejection is not None:
            raise SystemBusy(self._rejection)
        return self.writer.state

    @property
    def end(self) -> int:
        """Log position up to which this replica has synced."""
        return self.state.position

    def newest_ms(self) -> int | None:
        """Return when the newest message was stored, in ms since 1970; None if there is none."""
        return max((end.stored_ms for end in self.writer.state.ends.copy().values()), default=None)

    @property
    def stamps_ahead_ms(self) -> int:
        """By how many ms the newest message is ahead of the clock; 0 if by less than a minute."""
        ahead_ms = (self.newest_ms() or 0) - now_ms()
        return ahead_ms if ahead_ms > TOLERANCE_MS else 0

    # ---- for other replicas -----------------------------------------------------------------------------

    @property
    def confirmed(self) -> int:
        """Log position up to which all in-sync replicas have the log."""
        return min(self.confirmation.position, self.end) if self.confirmation.waits else self.end

    def entries(self, position: int, max_bytes: int) -> list[bytes]:
        """Return raw entries from a log position on, up to the one that reaches `max_bytes`; none at the end.

        Never cuts an atomic append. Stops before a gap that a rewriting has left.
        """
        found: list[bytes] = []
        end, at = self.end, position
        whole_from = position
        with closing(self.log.entries(position)) as entries:
            for place, entry in entries:
                if place >= end or (at - position >= max_bytes and at >= whole_from):
                    break
                if place != at and found and at >= self.log.complete_from:
                    raise CorruptEntry(f"the log has a gap: entry at {place} where {at} was expected")
                if place != at:
                    break
                found.append(bytes(entry))
                at += len(entry)
                whole_from = max(whole_from, at + atomic_size(entry))
        if not found and position != end:
            raise CopyNeeded(
                f"no entry begins at position {position} of the log, which holds {self.log.start} to {end}"
            )
        return found

    def part(self, position: int, max_bytes: int) -> tuple[int, list[bytes]]:
        """Return the position of the next stored entry, and the `entries` from there on."""
        at = position if position < self.log.start else self.log.next_position(position)
        return at, self.entries(at, max_bytes)

    def snapshot(self) -> Snapshot:
        """Return the last saved state. Together with the whole log, it makes a new replica."""
        rows = self._checkpoint.rows()
        return Snapshot(position_of(rows), rows)

    # ---- reading ----------------------------------------------------------------------------------------

    def queue_end(self, queue: QueueKey) -> QueueEnd:
        """Return the end of a queue for readers: that of its confirmed messages."""
        return self.confirmation.visible(queue, self.state.ends.get(queue, NO_MESSAGES))

    def end_since(self, queue: QueueKey, term: int) -> int:
        """Return the offset of a queue up to which this log agrees with a log of `term`.

        A later term may have cut what follows in that log.

        It is where the queue ended when the first later term began. Without a later term it is the end of the queue,
        including unconfirmed messages.
        """
        end = self.state.end(queue).offset
        start = next((start.position for start in self.state.terms if start.term > term), -1)
        found = None if start < 0 else self.log.first_offset_of(queue, lambda row: row.position >= start)
        return end if found is None else min(found, end)

    def search(self, queue: QueueKey, offset: int, limits: ReadLimits) -> tuple[list[StoredBatch], int]:
        """Return the matching batches from the one that holds `offset` on, and the offset after all that was examined.

        Stops after the batch that reaches a limit, so it returns at least one if there is one.
        """
        # The log may already have batches beyond `end`, which are committed but not applied or confirmed yet.
        end = self.queue_end(queue).offset
        reading = self.log.read(queue, offset, limits)
        if not reading.rows and offset < end:
            if self.log.may_lack(queue, offset):
                return [], end  # a rewriting has removed everything up to there
            if self.log.lacks(queue, offset):
                raise CorruptEntry(
                    f"offsets {offset} to {end - 1} of queue {self._name_of(queue)} are missing: go on from offset "
                    f"{end}; stop the broker and run minimq-broker check",
                    next_offset=end,
                )
        return [batch for batch in reading.found if batch.base_offset < end], min(reading.next_offset, end)

    def next_size(self, queue: QueueKey, offset: int) -> int:
        """Return the size in bytes of the entry that holds an offset, or of the next one; 0 if there is none."""
        row = self.log.row_at(queue, offset)
        return row.size if row is not None else 0

    def stored_ms(self, queue: QueueKey, offset: int) -> int:
        """Return when the batch at an offset, or the next one, was stored, in ms since 1970; 0 if there is none."""
        row = self.log.row_at(queue, offset)
        return row.stored_ms if row is not None and row.base_offset < self.queue_end(queue).offset else 0

    def bounds(self, queue: QueueKey) -> tuple[int, int]:
        """Return the first stored offset and the end of a queue for readers; equal if the queue is empty."""
        end = self.queue_end(queue).offset
        first = self.log.first_offset(queue)
        return (end if first is None else min(first, end)), end

    def offset_at(self, queue: QueueKey, timestamp_ms: int) -> int:
        """Return the first offset of a queue stored at or after a time (ms since 1970), or its end."""
        end = self.queue_end(queue).offset
        found = self.log.first_offset_of(queue, lambda row: row.stored_ms >= timestamp_ms)
        return end if found is None else min(found, end)
