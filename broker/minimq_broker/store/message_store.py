"""The message store: opens and recovers a data directory, writes through the writer, reads from the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import lmdb

from minimq_broker.core.disk import UNWATCHED, Watermarks
from minimq_broker.core.facts import TermBegun
from minimq_broker.core.retention import FOR_EVER, RetentionRules
from minimq_broker.core.state import QueueKey, State
from minimq_broker.store.checkpoint import Checkpoint
from minimq_broker.store.commit_figures import CommitFigures
from minimq_broker.store.commit_log import CommitLog
from minimq_broker.store.data_dir import DataDirectory
from minimq_broker.store.disk import Disk
from minimq_broker.store.entry import effect
from minimq_broker.store.jobs import AnyJob, FactJob, Notify
from minimq_broker.store.segment import Wish
from minimq_broker.store.writer import Writer
from minimq_common.errors import CorruptEntry, StoreError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a store keeps its data.

    Attributes:
        segment_bytes: size in bytes at which a segment of the CommitLog is sealed.
        sync: acknowledge after the sync (True), or before the commit (False).
        checkpoint_interval_s: seconds between two saves of the state; recovery applies what came later.
        retention: how long segments are kept.
        watermarks: from which fullness of the disk on something is done.
    """

    segment_bytes: int = 1 << 30
    sync: bool = True
    checkpoint_interval_s: float = 5.0
    retention: RetentionRules = FOR_EVER
    watermarks: Watermarks = UNWATCHED


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch as it stands in a queue."""

    base_offset: int
    stored_ms: int
    position: int
    count: int
    data: bytes


class MessageStore:
    """The data directory of a broker, open. Any thread may submit and read.

    Args:
        path: the data directory; made when it is not there.
        notify: called by the writer's thread, see `Notify`.
        options: how to keep the data.
        clock_ms: the time of day in ms since 1970.

    Raises:
        StoreError: the directory cannot be used; the class and the text say why.
    """

    def __init__(
        self,
        path: Path,
        notify: Notify,
        options: StoreOptions,
        clock_ms: Callable[[], int],
    ) -> None:
        with ExitStack() as opened:
            self._directory = DataDirectory(path, create=True)
            opened.callback(self._directory.close)
            try:
                self._checkpoint = Checkpoint(self._directory.state_path)
                opened.callback(self._checkpoint.close)
                self.log = CommitLog(self._directory.log_path, options.segment_bytes)
                opened.callback(self.log.close)
                self.state = recover(self._checkpoint, self.log)
            except lmdb.Error as error:
                raise StoreError(f"cannot open the store in {path}: {error}: run minimq-broker check {path}") from error
            opened.pop_all()  # all is well: `close` closes them
        self._writer = Writer(
            self.log,
            self.state,
            self._checkpoint,
            notify,
            sync=options.sync,
            checkpoint_interval_s=options.checkpoint_interval_s,
            clock_ms=clock_ms,
        )
        self._closed = False
        self.options = options
        self.disk = Disk(path, options.watermarks)
        self._writer.refusal = self.disk.refusal
        #: Number of this run; larger than that of any run before.
        self.term = self.state.term + 1
        self._writer.start()
        self.submit(FactJob(lambda _: TermBegun(self.term), lambda job: None))

    def submit(self, job: AnyJob) -> None:
        """Hand a job to the writer; it comes back through `notify`."""
        self._writer.submit(job)

    def close(self) -> None:
        """Write what was handed in, save the state and close all files. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._writer.stop()
        self.log.close()
        self._checkpoint.close()
        self._directory.close()

    @property
    def saved_position(self) -> int:
        """Log position from which on recovery would need entries."""
        return self._checkpoint.position

    @property
    def commits(self) -> int:
        """Transactions committed since the start."""
        return self._writer.commits

    @property
    def figures(self) -> CommitFigures:
        """How large commits were, and how long they took."""
        return self._writer.figures

    @property
    def has_failed(self) -> bool:
        """Whether everything is refused until the broker is started anew."""
        return self._writer.has_failed

    def read(self, queue: QueueKey, offset: int, max_messages: int, max_bytes: int) -> list[StoredBatch]:
        """Return the batches of a queue from the one that holds `offset` on; nothing when there is none yet.

        Stops after the batch that reaches `max_messages` or `max_bytes`; at least one comes if there is one.
        """
        return self.search(queue, offset, Wish(max_messages, max_bytes))[0]

    def search(self, queue: QueueKey, offset: int, wish: Wish) -> tuple[list[StoredBatch], int]:
        """Return batches as `read` does, only those that are wanted, and the offset after all that was looked at."""
        # What was committed this moment and is not in the state yet is beyond the end that everybody is told.
        end = self.state.end(queue).offset
        part = self.log.read(queue, offset, wish)
        batches = [
            StoredBatch(row.base_offset, row.stored_ms, row.position, row.count, data)
            for row, data in part.found
            if row.base_offset < end
        ]
        return batches, min(part.next_offset, end)

    def stored_ms(self, queue: QueueKey, offset: int) -> int:
        """Return when the message at an offset was stored, in ms since 1970; 0 when there is none at or after it.

        It is the time of its whole batch.
        """
        row = self.log.row_at(queue, offset)
        return row.stored_ms if row is not None and row.base_offset < self.state.end(queue).offset else 0

    def bounds(self, queue: QueueKey) -> tuple[int, int]:
        """Return the first stored offset and the one the next message will get; both are equal for an empty queue."""
        end = self.state.end(queue).offset
        first = self.log.first_offset(queue)
        return (end if first is None else min(first, end)), end

    def offset_at(self, queue: QueueKey, timestamp_ms: int) -> int:
        """Return the first offset of a queue stored at or after a time, or its end."""
        found = self.log.offset_at(queue, timestamp_ms)
        return self.state.end(queue).offset if found is None else found


def recover(checkpoint: Checkpoint, commit_log: CommitLog) -> State:
    """Return the state: the checkpoint, and on top of it the entries that came later.

    Raises:
        CorruptEntry: one of those entries does not match its checksum.
        StoreError: the checkpoint is of another log.
    """
    started = time.monotonic()
    state = checkpoint.load()
    behind = state.position
    if not commit_log.start <= behind <= commit_log.end:
        raise StoreError(
            f"the checkpoint is at log position {behind}, but the log holds {commit_log.start} to {commit_log.end}: "
            "files of two directories were mixed, or some are missing; restore them together"
        )
    applied = 0
    for position, entry in commit_log.entries(behind):
        if position != state.position:
            raise CorruptEntry(f"the log has a gap: entry at {position} where {state.position} was expected")
        state.apply(effect(entry, position), position + len(entry))
        applied += 1
    log.info(
        "store: recovered topics=%d end=%d applied=%d seconds=%.3f",
        len(state.topics),
        state.position,
        applied,
        time.monotonic() - started,
    )
    return state
