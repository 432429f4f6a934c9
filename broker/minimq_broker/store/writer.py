"""The writer: the one thread that changes the log, and the group commit.

It takes everything that waits, appends it in one transaction, syncs once, applies the entries to the state and only
then tells the callers. There is no timer: a lone write is committed at once, and what arrives during its sync makes
the next group.
"""

from __future__ import annotations

import copy
import errno
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Set

import lmdb

from minimq_broker.core.state import QueueKey, State
from minimq_broker.store.checkpoint import Checkpoint
from minimq_broker.store.commit_figures import CommitFigures
from minimq_broker.store.commit_log import CommitLog
from minimq_broker.store.group import Group
from minimq_broker.store.jobs import AnyJob, AppendJob, FactJob, Notify, SendStatus
from minimq_common.errors import InternalError, MiniMQError, StoreError, StoreFull

log = logging.getLogger(__name__)

#: A group is committed when it has this much, so that one transaction stays small next to a segment.
_MAX_GROUP_BYTES = 32 << 20


class Writer:
    """Owns the log, the state and the checkpoint for writing, from `start` to `stop`.

    Args:
        commit_log: where entries go.
        state: what they add up to; only the writer's thread changes it.
        checkpoint: where the state is saved every `checkpoint_interval_s` seconds and at the end.
        notify: see `Notify`.
        sync: tell those who append after the sync (True), or before the commit as long as commits succeed (False).
        clock_ms: the time of day in ms since 1970.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        state: State,
        checkpoint: Checkpoint,
        notify: Notify,
        *,
        sync: bool,
        checkpoint_interval_s: float,
        clock_ms: Callable[[], int],
    ) -> None:
        self._log = commit_log
        self._state = state
        self._checkpoint = checkpoint
        self._notify = notify
        self._sync = sync
        self._interval_s = checkpoint_interval_s
        self._clock_ms = clock_ms
        self._jobs: queue.SimpleQueue[AnyJob | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="minimq-writer", daemon=True)
        self._failure: MiniMQError | None = None
        #: Whether the latest batches were written; those who append are told early only then.
        self._succeeded = True
        self._stopping = False
        #: Tells before each group why no batch may be written now, None when it may.
        self.refusal: Callable[[], MiniMQError | None] = lambda: None
        #: Transactions committed since the start.
        self.commits = 0
        self.figures = CommitFigures(time.monotonic())

    @property
    def has_failed(self) -> bool:
        """Whether everything is refused until the broker is started anew."""
        return self._failure is not None

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def submit(self, job: AnyJob) -> None:
        """Hand a job in; it comes back through `notify`. Any thread may call this until `stop`."""
        self._jobs.put(job)

    def stop(self) -> None:
        """Write what was handed in, save the state, and end the thread. Idempotent."""
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        saved_at = time.monotonic()
        while not self._stopping:
            try:
                jobs = self._take(max(0.0, saved_at + self._interval_s - time.monotonic()))
                for group in _groups(jobs):
                    self._write(group)
            except Exception as error:  # noqa: BLE001 - never the end of the thread: later jobs must hear of it
                self._fail(error)
            if time.monotonic() >= saved_at + self._interval_s:
                self._save()
                saved_at = time.monotonic()
        self._save()

    def _take(self, wait_s: float) -> list[AnyJob]:
        """Return all that waits, up to the size of a group; wait for the first."""
        jobs: list[AnyJob] = []
        size = 0
        try:
            job = self._jobs.get(timeout=wait_s)
            while True:
                if job is None:
                    self._stopping = True
                    break
                jobs.append(job)
                size += job.size
                if size >= _MAX_GROUP_BYTES:
                    break
                job = self._jobs.get_nowait()
        except queue.Empty:
            pass
        return jobs

    def _write(self, jobs: list[AnyJob]) -> None:
        """Write one group and tell everybody."""
        grown: Set[QueueKey] = frozenset()
        if self._failure:
            self._refuse(jobs, self._failure)
        else:
            try:
                grown = self._commit(jobs)
                self._succeeded = self._succeeded or bool(grown)
            except Exception as error:  # noqa: BLE001 - whatever it is, every caller must hear of it
                self._succeeded = False
                self._refuse(jobs, self._reason(error))
        try:
            self._notify(jobs, grown)
        except Exception as error:  # noqa: BLE001 - who waits for these jobs was not told, later ones shall be
            self._fail(error)

    def _commit(self, jobs: list[AnyJob]) -> Set[QueueKey]:
        """Write what can be written of a group, and return the queues that have grown. Takes early answers out."""
        self._log.roll_if_full(self._state.position)
        ahead = not self._sync and self._succeeded
        group = Group(self._state, self._state.position, self._clock_ms(), ahead=ahead, refusal=self.refusal())
        for job in jobs:
            try:
                if isinstance(job, AppendJob):
                    group.add_batch(job)
                else:
                    group.add_fact(job)
            except MiniMQError as error:
                job.error = error
            except Exception as error:  # a fault in one decision is no fault of the disk
                log.exception("store: a job failed")
                job.error = InternalError(f"the broker failed while it decided: {type(error).__name__}: {error}")
        if group.early:
            self._notify([*group.early], frozenset())
            told = set[AnyJob](group.early)
            jobs[:] = [job for job in jobs if job not in told]
        if group.entries:
            self._store(group)
        return group.grown

    def _store(self, group: Group) -> None:
        began_at = time.monotonic()
        try:
            self._put_or_roll(group)
        except Exception:
            if lost := sum(job.status is SendStatus.NOT_SYNCED for job in group.early):
                log.error("store: batches are lost that were acknowledged before the commit jobs=%d", lost)
            raise
        self.commits += 1
        self.figures.committed(group, time.monotonic() - began_at)
        for effect, position in group.effects:
            self._state.apply(effect, position)

    def _put_or_roll(self, group: Group) -> None:
        try:
            self._put(group)
        except lmdb.MapFullError:
            self._log.roll(self._state.position)
            self._put(group)

    def _put(self, group: Group) -> None:
        segment = self._log.active
        with segment.begin() as txn:
            segment.put(txn, group.entries, group.rows)

    def _refuse(self, jobs: list[AnyJob], reason: MiniMQError) -> None:
        log.error("store: group refused jobs=%d error=%s", len(jobs), reason.message)
        for job in jobs:
            # Each its own: an exception keeps a traceback, and by it everything that those who raise it hold.
            job.error = job.error or copy.copy(reason)

    def _reason(self, error: Exception) -> MiniMQError:
        """Return what callers are told of a failed write. The store fails unless it is certain what the disk holds."""
        if self._is_full(error):
            return StoreFull(
                f"the disk of the broker is full ({error}): free space, then send again", retry_after_s=1.0
            )
        if isinstance(error, lmdb.MapFullError):  # even of an empty segment, and nothing was written
            return StoreError(f"one group of entries does not fit into a segment ({error}): send smaller batches")
        if isinstance(error, MiniMQError):
            return error
        return self._fail(error)

    def _fail(self, error: Exception) -> MiniMQError:
        """Refuse everything from now on, and return the reason: a new start finds out what the disk holds."""
        log.error("store: stopped after an error", exc_info=error)
        self._failure = InternalError(f"the store stopped after an error ({error}): restart the broker")
        return self._failure

    def _is_full(self, error: Exception) -> bool:
        """Tell whether a write failed for want of space."""
        if isinstance(error, lmdb.DiskError) or (isinstance(error, OSError) and error.errno == errno.ENOSPC):
            return True
        # LMDB calls it an input/output error when only a part of a write still fits.
        failed = isinstance(error, lmdb.Error | StoreError) and not isinstance(error, lmdb.MapFullError)
        return failed and self._log.free_bytes < _MAX_GROUP_BYTES

    def _save(self) -> None:
        if self._failure:
            return  # the state may be half changed; recovery goes on from the checkpoint before
        try:
            self._checkpoint.save(self._state)
            self.figures.saved_at = time.monotonic()
        except lmdb.Error as error:
            log.error("store: checkpoint not saved, recovery will take longer error=%s", error)
        except Exception as error:  # noqa: BLE001 - never the end of the thread
            self._fail(error)


def _groups(jobs: list[AnyJob]) -> Iterator[list[AnyJob]]:
    """Split jobs so that one whose decision needs the state comes first in its group."""
    group: list[AnyJob] = []
    for job in jobs:
        if group and isinstance(job, FactJob) and job.alone:
            yield group
            group = []
        group.append(job)
        if isinstance(job, FactJob) and job.alone:
            yield group
            group = []
    if group:
        yield group
