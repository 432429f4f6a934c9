"""The message store: opens and recovers a data directory, writes with the `Writer`, reads from the log."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import lmdb

from minimq_broker.commit.confirmation import Confirmation
from minimq_broker.commit.jobs import FactJob, Notify
from minimq_broker.commit.replica_features import ReplicaFeatures
from minimq_broker.commit.writer import CommitFigures, Writer, term_begun
from minimq_broker.features.feature import Pins
from minimq_broker.features.registry import FEATURES
from minimq_broker.log.checkpoint import Snapshot, check_saved_features, position_of
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.data_dir import DataDirectory, Owner
from minimq_broker.log.disk import Disk
from minimq_broker.log.disk_levels import UNWATCHED, Watermarks
from minimq_broker.log.entry import atomic_size
from minimq_broker.log.lmdb_file import DamagedFile
from minimq_broker.log.recovery import open_state
from minimq_broker.log.rewriting import Rewriting
from minimq_broker.log.rows import ReadLimits, StoredBatch
from minimq_broker.state.state import QueueEnd, QueueKey, State
from minimq_common.errors import CopyNeeded, CorruptEntry, NotEnoughReplicas


@dataclass(frozen=True, slots=True)
class StoreOptions:
    segment_bytes: int = 1 << 30
    checkpoint_interval_s: float = 5.0
    watermarks: Watermarks = UNWATCHED
    #: Time that a message waits for replicas. As long as a slave may lag before it leaves the in-sync set.
    replication_timeout_s: float = 5.0
    owner: Owner | None = None


class MessageStore:
    """The open data directory of a broker. Any thread may submit and read."""

    def __init__(
        self,
        path: Path,
        notify: Notify,
        options: StoreOptions,
        clock_ms: Callable[[], int],
        *,
        alone: bool = True,
        grown: Callable[[], None] | None = None,
        disk_filled: Callable[[], None] = lambda: None,
    ) -> None:
        """Open and recover a data directory. Callbacks are called on any thread, and must neither block nor fail."""
        with ExitStack() as opened:
            self._directory = DataDirectory(path, create=True, owner=options.owner)
            opened.callback(self._directory.close)
            self._directory.check_whole()
            try:
                verified = check_saved_features(self._directory.state_path, path)
                self.log = CommitLog(self._directory.log_path, options.segment_bytes, self._name_of)
                opened.callback(self.log.close)
                self._confirmation = Confirmation(notify, waits=not alone)
                self._checkpoint, state = open_state(
                    self._directory.state_path, self.log, None if alone else self._confirmation, verified=verified
                )
            except lmdb.Error as error:
                text = f"cannot open the store in {path}: {error}: run minimq-broker check {path}"
                raise DamagedFile(text) from error
            opened.pop_all()  # success: from now on `close` closes them
        self.disk = Disk(path, options.watermarks, disk_filled)
        #: What replicas announce; a master without any may use all features.
        self.replica_features = ReplicaFeatures()
        self._writer = Writer(
            self.log,
            state,
            self._checkpoint,
            self._confirmation,
            clock_ms=clock_ms,
            disk=self.disk,
            replicas=self.replica_features,
            grown=grown,
            checkpoint_interval_s=options.checkpoint_interval_s,
            leads=alone,
        )
        #: Passes a job to the writer, which answers it through `notify`.
        self.submit = self._writer.submit
        #: Calls a function on the writer's thread between two groups, and waits for it. Raises what it raises.
        self.call = self._writer.call
        self._closed = False
        self.options = options
        #: Term of a broker without replicas, 0 otherwise. Readers are served even if its begin cannot be written.
        self._own_term = self.state.term + 1 if alone else 0
        self._writer.start()
        if alone:
            self.submit(FactJob(lambda state: term_begun(self._own_term, state)))

    def _name_of(self, queue: QueueKey) -> str:
        return self.state.name_of(queue)

    def close(self) -> None:
        """Commit the submitted jobs, save the state and close all files. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._writer.stop()
        self.log.close()
        self._checkpoint.close()
        self._directory.close()

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

    # ---- state and role ---------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The current state, read-only. A truncation replaces the object."""
        return self._writer.state

    @property
    def term(self) -> int:
        """The term in which this broker or its master writes. Each run as a master has a larger one."""
        return max(self._own_term, self.state.term)

    @property
    def end(self) -> int:
        """Log position up to which this replica has synced."""
        return self.state.position

    # ---- as one of several replicas ---------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self._writer.leads

    def lead(self, term: int, *, waits_for_replicas: bool = False) -> None:
        """Become the master of a term. Blocks until its begin is synced here: not for the event loop."""
        self._writer.call(lambda: self._writer.lead(term, waits=waits_for_replicas))

    def follow(self) -> None:
        """Become a slave, which accepts only `ReplicaJob`s; reject all waiting jobs. Blocks: not for the event loop."""
        self._writer.call(self._writer.follow)

    def truncate(self, position: int) -> None:
        """Delete all entries from a log position on. Blocks: not for the event loop.

        There must be no readers, and holders of `state` must replace it. Crash-safe: the directory can be opened and
        truncated again.
        """
        self._writer.call(lambda: self._writer.truncate(position))

    @property
    def confirmed(self) -> int:
        """Log position up to which all in-sync replicas have the log."""
        return min(self._confirmation.position, self.end) if self._confirmation.waits else self.end

    def confirm(self, position: int) -> None:
        """Note that everything up to a log position is confirmed. Its jobs are answered on this thread."""
        self._confirmation.confirm(position)

    def expire(self, now: float) -> None:
        """Reject jobs that have waited longer than `replication_timeout_s` for replicas. `now` is monotonic."""
        timeout_s = self.options.replication_timeout_s
        self._confirmation.reject(
            lambda: NotEnoughReplicas(
                f"other replicas did not confirm within {timeout_s:g} s what was sent: it is stored here, and may be "
                "sent again"
            ),
            before=now - timeout_s,
        )

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

    # ---- the writer -------------------------------------------------------------------------------------

    @property
    def figures(self) -> CommitFigures:
        return self._writer.figures

    @property
    def has_failed(self) -> bool:
        """True if all jobs are rejected until the broker is restarted."""
        return self._writer.has_failed

    # ---- reading ----------------------------------------------------------------------------------------

    def queue_end(self, queue: QueueKey) -> QueueEnd:
        """Return the end of a queue for readers: that of its confirmed messages."""
        return self._confirmation.visible(queue, self.state.end(queue))

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
