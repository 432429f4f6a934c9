"""The writer: the one thread that changes the log, and the group commit.

It takes all waiting jobs, appends their entries in one transaction, syncs once, applies the entries to the state and
only then answers the callers. There is no timer: a lone job is committed at once, and the jobs that arrive during its
sync are the next group. If a master waits for its slaves, the `Confirmation` answers the callers instead.
"""

from __future__ import annotations

import copy
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Set
from concurrent.futures import wait

import lmdb

from minimq_broker.commit.commit_group import CommitGroup
from minimq_broker.commit.confirmation import Confirmation
from minimq_broker.commit.jobs import Call, FactJob, Job
from minimq_broker.commit.replica_features import ReplicaFeatures
from minimq_broker.commit.sync_watch import SLOW_S, SyncWatch
from minimq_broker.log.checkpoint import ChangedRows, Checkpoint, take_changes
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.disk import Disk, no_room
from minimq_broker.log.recovery import truncate
from minimq_broker.state.facts import TermBegun
from minimq_broker.state.state import QueueKey, State
from minimq_common.errors import Closed, CopyNeeded, InternalError, InvalidArgument, MinimqError, NotMaster, StoreError
from minimq_common.serving.histogram import COUNTS, SECONDS, Histogram

log = logging.getLogger(__name__)

#: Size at which no more jobs join a group, so that one transaction stays small compared to a segment.
_MAX_GROUP_BYTES = 32 << 20
#: Retry interval while the state to be saved is not yet confirmed.
_SAVE_RETRY_INTERVAL_S = 0.25
#: How long `stop` waits for the confirmation of the state to be saved.
_FINAL_CONFIRMATION_TIMEOUT_S = 0.05
#: Interval in which the caller of `Writer.call` checks that the thread still runs.
_CHECK_INTERVAL_S = 1.0


def term_begun(term: int, state: State) -> TermBegun:
    """Return the fact that begins a term. The first one in a log also carries a new random log id."""
    return TermBegun(term) if state.log_id else TermBegun(term, secrets.token_hex(8))


class CommitFigures:
    """Statistics of commits. The writer's thread counts; any thread may read."""

    def __init__(self, now: float) -> None:
        self.seconds = Histogram(SECONDS)
        self.messages = Histogram(COUNTS)
        self.commits = 0
        self.saved_at = now
        self.syncs = SyncWatch()


class Writer:
    """The only writer of log, state and checkpoint, from `start` to `stop`."""

    def __init__(
        self,
        commit_log: CommitLog,
        state: State,
        checkpoint: Checkpoint,
        confirmation: Confirmation,
        *,
        clock_ms: Callable[[], int],
        disk: Disk,
        replicas: ReplicaFeatures,
        grown: Callable[[], None] | None,
        checkpoint_interval_s: float,
        leads: bool,
    ) -> None:
        self._log = commit_log
        self.state = state
        self._checkpoint = checkpoint
        self._notify = confirmation.notify
        self._confirmation = confirmation
        #: True: writes batches and facts, as the master. False: writes the entries of another master.
        self.leads = leads
        self._disk, self._replicas = disk, replicas
        self._clock_ms, self._grown = clock_ms, grown
        self._interval_s = checkpoint_interval_s
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        #: Enqueues a job, which is answered through `notify`. Any thread may call this until `stop`.
        self.submit: Callable[[Job], None] = self._jobs.put
        #: Taken from `_jobs`, and not for the group before it.
        self._following: Job | None = None
        self._thread = threading.Thread(target=self._run, name="minimq-writer", daemon=True)
        self._failure: MinimqError | None = None
        #: Taken, to be saved once it is confirmed: the log of a slave cannot be truncated below its checkpoint.
        self._to_save: ChangedRows | None = None
        self._stopping = False
        self.figures = CommitFigures(time.monotonic())

    @property
    def has_failed(self) -> bool:
        """True if all jobs are rejected until the broker is restarted."""
        return self._failure is not None

    def start(self) -> None:
        """Start the writer's thread."""
        self._thread.start()

    def call(self, run: Callable[[], None]) -> None:
        """Call `run` on the writer's thread after all submitted jobs, and wait for it. Raises what it raises."""
        call = Call(run)
        self._jobs.put(call)
        while not wait((call.answer,), _CHECK_INTERVAL_S).done:
            if not self._thread.is_alive():
                raise Closed("the store is closed")
        call.answer.result()

    def stop(self) -> None:
        """Commit the submitted jobs, save the state, and join the thread. Idempotent."""
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        save_at = time.monotonic() + self._interval_s
        while not self._stopping:
            try:
                jobs = self._take(max(0.0, save_at - time.monotonic()))
                match jobs:
                    case [Call() as call]:
                        self._do(call)
                    case [_, *_]:
                        self._notify(jobs, self._commit(jobs))
            except Exception as error:  # noqa: BLE001 - the thread continues: it has to answer later jobs
                self._fail(error)
            if time.monotonic() >= save_at:
                wait_s = self._interval_s if self._save() else min(self._interval_s, _SAVE_RETRY_INTERVAL_S)
                save_at = time.monotonic() + wait_s
        self._save(_FINAL_CONFIRMATION_TIMEOUT_S)
        if self._checkpoint.position != self.state.position:
            self._save(_FINAL_CONFIRMATION_TIMEOUT_S)
        self._confirmation.reject(lambda: NotMaster("the broker stops before the other replicas have confirmed"))

    def _take(self, wait_s: float) -> list[Job]:
        """Return the jobs of the next group; none if none came in time, or the writer stops.

        A job with `alone` is the only one in its group. Jobs with `fresh` see each other's decisions and may share a
        group, but only without a fact before them.
        """
        try:
            job = self._following or self._jobs.get(timeout=wait_s)
        except queue.Empty:
            return []
        self._following = None
        group: list[Job] = []
        size, has_fact = 0, False
        while job is not None:
            group.append(job)
            # `empty` is reliable, as no other thread takes jobs.
            if job.alone or self._jobs.empty() or (size := size + job.size) >= _MAX_GROUP_BYTES:
                return group
            has_fact |= job.has_fact
            job = self._jobs.get_nowait()
            if job is not None and (job.alone or (has_fact and job.fresh)):
                self._following = job
                return group
        self._stopping = True
        return group

    def _do(self, call: Call) -> None:
        try:
            if self._failure:
                raise copy.copy(self._failure)
            call.run()
        except Exception as error:  # noqa: BLE001 - raised in the caller
            call.answer.set_exception(self._reason(error))
        else:
            call.answer.set_result(None)

    # ---- roles ----------------------------------------------------------------------------------------

    def lead(self, term: int, *, waits_for_replicas: bool = False) -> None:
        """Become the master of a term. Blocks until its begin is synced here: not for the event loop."""
        self.call(lambda: self._lead(term, waits=waits_for_replicas))

    def follow(self) -> None:
        """Become a slave, which accepts only `ReplicaJob`s; reject all waiting jobs. Blocks: not for the event loop."""
        self.call(self._follow)

    def truncate(self, position: int) -> None:
        """Delete all entries from a log position on. Blocks: not for the event loop.

        There must be no readers, and holders of `state` must replace it.
        """
        self.call(lambda: self._truncate(position))

    def _lead(self, term: int, *, waits: bool) -> None:
        if term <= self.state.term:
            raise InvalidArgument(f"term {term} cannot follow on term {self.state.term}")
        self._confirmation.restart(waits=waits, end=self.state.position)
        self.leads = True
        job = FactJob(lambda state: term_begun(term, state))
        jobs: list[Job] = [job]
        grown = self._commit(jobs)
        failure = job.error  # before `notify`, whose receiver may set an error of its own
        self._notify(jobs, grown)
        if failure is not None:
            self._follow()
            raise failure

    def _follow(self) -> None:
        self.leads = False
        self._confirmation.reject(_not_master)
        self._confirmation.restart(waits=True, end=self.state.position)

    def _truncate(self, position: int) -> None:
        if self.leads:
            raise InvalidArgument("the log of a master cannot be cut")
        before = self.state
        try:
            self.state = truncate(self._log, self._checkpoint, self._confirmation, before, position)
        except CopyNeeded:
            raise
        except Exception as error:  # the state may no longer match the log
            raise self._fail(error) from error
        if self.state is not before:  # recovered from the checkpoint: the taken changes are not part of it
            self._to_save = None

    # ---- writing --------------------------------------------------------------------------------------

    def _commit(self, jobs: list[Job]) -> Set[QueueKey]:
        """Decide and store jobs, and return the queues that have grown. Each job that is not stored gets an error."""
        if self._failure:
            self._reject(jobs, self._failure)
            return frozenset()
        waits = self._confirmation.waits
        group = CommitGroup(self.state, self._clock_ms(), log=self._log, disk=self._disk, replicas=self._replicas)
        for job in jobs:
            try:
                if job.replicates is self.leads:
                    raise InvalidArgument("a master accepts no entries of another") if self.leads else _not_master()
                job.decide(group)
            except MinimqError as error:
                job.error = error
            except Exception as error:  # a bug in one decision: the store itself is intact
                log.exception("store: a job failed")
                job.error = InternalError(f"the broker failed to process the request: {type(error).__name__}: {error}")
        try:
            for scratch in group.scratches.values():  # the state is as before, until the effects are applied
                scratch.end()
            if group.entries:
                self._store(group, waits=waits)
            return self._submit_to_confirmation(group, jobs) if waits else group.ends.keys()
        except Exception as error:  # noqa: BLE001 - whatever it is, every caller gets an answer
            self._reject(jobs, self._reason(error))
            return frozenset()

    def _submit_to_confirmation(self, group: CommitGroup, jobs: list[Job]) -> Set[QueueKey]:
        waiting: list[Job] = [job for job in jobs if job.error is None and not job.replicates]
        jobs[:] = [job for job in jobs if job.error is not None or job.replicates]
        self._confirmation.add(group.end, waiting, group.ends.keys(), time.monotonic())
        return frozenset()

    def _store(self, group: CommitGroup, *, waits: bool) -> None:
        syncs = self.figures.syncs
        syncs.began_at = began_at = time.monotonic()  # as `syncs.sync`, with fewer calls
        try:
            self._log.append(group.start, group.entries, group.rows, group.index_rows)
        finally:
            stored_at = time.monotonic()
            if stored_at - began_at >= SLOW_S:
                syncs.was_slow(stored_at, stored_at - began_at)
            syncs.began_at = None
        try:
            self.figures.commits += 1
            self.figures.seconds.add(stored_at - began_at)
            self.figures.messages.add(group.messages)
            if waits:
                self._confirmation.cover({queue: self.state.end(queue) for queue in group.ends})
            for effect, position, at_ms in group.effects:
                self.state.apply(effect, position, at_ms)
            if self._grown is not None:
                self._grown()
        except Exception as error:  # whatever it is: the log has the group, and the state may have a part of it
            raise self._fail(error) from error

    def _reject(self, jobs: list[Job], reason: MinimqError) -> None:
        log.error("store: group rejected jobs=%d error=%s", len(jobs), reason.message)
        for job in jobs:
            # A copy per job: an exception keeps a traceback, and with it the frames of the caller that raises it.
            job.error = job.error or copy.copy(reason)

    def _reason(self, error: Exception) -> MinimqError:
        if (full := no_room(error, self._log.path)) is not None:
            return full
        if isinstance(error, lmdb.MapFullError):  # too large even for an empty segment; nothing was written
            return StoreError(f"one group of entries does not fit into a segment ({error}): send smaller batches")
        if isinstance(error, MinimqError):
            return error
        return self._fail(error)

    def _fail(self, error: Exception) -> MinimqError:
        log.error("store: stopped after an error", exc_info=error)
        self._failure = InternalError(f"the store stopped after an error ({error}): restart the broker")
        return self._failure

    def _save(self, max_wait_s: float = 0.0) -> bool:
        if self._failure:
            return True  # the state may be half changed; recovery starts from the previous checkpoint
        if self._to_save is None and self._checkpoint.position == self.state.position:
            self.figures.saved_at = time.monotonic()
            return True  # only entries of the log change the state
        try:
            if self._to_save is None:
                self._to_save = take_changes(self.state)
            if not self._confirmation.wait(self._to_save.position, max_wait_s):
                return False
            with self.figures.syncs.sync():
                self._checkpoint.save(self._to_save)
            for saved in self._to_save.saved:
                saved()
            self._log.saved_to = self._to_save.position
            self._to_save = None
            self.figures.saved_at = time.monotonic()
        except lmdb.Error as error:
            log.error("store: checkpoint not saved, recovery will take longer error=%s", error)
        except Exception as error:  # noqa: BLE001 - the thread continues: it has to answer later jobs
            self._fail(error)
        return True


def _not_master() -> NotMaster:
    return NotMaster("the broker is not the master of its replica set now: only the master writes")
