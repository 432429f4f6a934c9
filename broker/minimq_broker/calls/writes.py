"""The event loop's side of the writer: submits jobs and receives their answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Set
from typing import TypeVar

from minimq_broker.calls.administration import log_change
from minimq_broker.calls.finished_jobs import FinishedJobs
from minimq_broker.calls.limits import Limits
from minimq_broker.calls.long_polls import LongPolls
from minimq_broker.commit.jobs import AppendJob, AtomicJob, FactJob, Job, Notify, ReplicaJob
from minimq_broker.commit.store import Store
from minimq_broker.state.facts import Fact
from minimq_broker.state.state import QueueKey, State
from minimq_common.errors import MinimqError, SystemBusy

log = logging.getLogger(__name__)

_FAILED = "writes: a callback of a commit failed"

_SMALL_BYTES = 16 << 10
#: With more unanswered jobs, the event loop has other things to do.
_MAX_WAITED_JOBS = 2

Written = TypeVar("Written", bound=Job)
#: Returns why writes may not be accepted or acknowledged now, or None. May be stricter with `to_sender`, for batches.
WriteRejection = Callable[..., MinimqError | None]


class Writes:
    """Jobs that the writer has not answered yet, with a bound on their bytes. Belongs to the event loop."""

    def __init__(
        self,
        open_store: Callable[[Notify], Store],
        arrivals: LongPolls,
        limits: Limits,
        recorded: Callable[[FactJob | ReplicaJob], None],
        rejection: WriteRejection | None,
    ) -> None:
        """`recorded` is called with each job that may have recorded facts, before its caller gets the answer."""
        self._finished = FinishedJobs(self._finish)
        self.store = open_store(self._finished.put)
        self._arrivals, self._limits, self._recorded = arrivals, limits, recorded
        #: None if writes are always accepted.
        self.rejection = rejection
        #: Called with each batch just after its submission: jobs they submit can join its commit.
        self.listeners: list[Callable[[AppendJob], object]] = []
        self._loop = asyncio.get_running_loop()
        #: Unanswered jobs with the bytes of their batches, and the sum of these bytes, which any thread may read.
        self._pending: dict[Job, int] = {}
        self.pending_bytes = 0
        #: Calls to make after the commit that is being answered; None if none is.
        self._calls: list[Callable[[], object]] | None = None
        #: Jobs for the writer, from the next iteration of the loop on; only if it was idle.
        self._small: list[Job] = []
        self._room = asyncio.Event()
        self._room.set()
        #: Loop time since when there has been no room and no commit; otherwise infinite.
        self._stuck_since = math.inf

    def check(self, *, to_sender: bool = False) -> None:
        """Raise the reason if writes may not be accepted now."""
        if self.rejection is not None and (rejection := self.rejection(to_sender=to_sender)) is not None:
            raise rejection

    # ---- submitting -----------------------------------------------------------------------------

    def offer(self, job: AppendJob) -> bool:
        """Submit a batch; False if too many bytes are in flight. `job.done` is called on the loop."""
        if self.rejection is not None:
            self.check(to_sender=True)
        size = len(job.data)
        if self.pending_bytes and self.pending_bytes + size > self._limits.max_pending_bytes:
            return False
        self._begin(job, size)
        for listener in self.listeners:
            listener(job)
        return True

    def _begin(self, job: Job, size: int = 0) -> None:
        self._pending[job] = size
        self.pending_bytes += size
        if not self._small:
            # A master waits for slaves, which need this loop.
            if (
                len(self._pending) > 1
                or size > _SMALL_BYTES
                or self.rejection
                or self._loop.time() < self._finished.wait_from
            ):
                self.store.writer.submit(job)
                return
            self._loop.call_soon(self._commit_small)
        self._small.append(job)

    def _commit_small(self) -> None:
        jobs, self._small = self._small, []
        for job in jobs:
            self.store.writer.submit(job)
        if len(jobs) <= _MAX_WAITED_JOBS:
            self._finished.wait()

    async def append(self, job: AppendJob) -> None:
        """Submit a batch, after a wait for room of at most `busy_after_s`. Raises `SystemBusy` without room."""
        await self._room_for(job)
        self.offer(job)

    async def append_atomic(self, job: AtomicJob, check: Callable[[], None]) -> None:
        """Submit batches that are stored all or not at all. Calls `check` right before, without an await in between."""
        await self._room_for(job)
        check()
        self._begin(job, job.size)
        for batch in job.batches:
            for listener in self.listeners:
                listener(batch)

    async def _room_for(self, job: AppendJob | AtomicJob) -> None:
        came_at = self._loop.time()
        while True:
            self.check(to_sender=True)  # after each wait too: a closed store would never answer
            if self._has_room(job):
                break
            self._room.clear()
            self._stuck_since = min(self._stuck_since, self._loop.time())
            try:
                # Counted from the first waiter: while the disk hangs, later callers are rejected at once.
                async with asyncio.timeout_at(min(came_at, self._stuck_since) + self._limits.busy_after_s):
                    await self._room.wait()
            except TimeoutError:
                if not self._has_room(job):
                    raise SystemBusy(
                        f"{self.pending_bytes:,} bytes of batches wait for the disk of the broker, without room for "
                        f"others for {self._limits.busy_after_s} s: retry later, or send to another broker",
                        limit="pending-bytes",
                    ) from None

    def _has_room(self, job: AppendJob | AtomicJob) -> bool:
        return not self.pending_bytes or self.pending_bytes + job.size <= self._limits.max_pending_bytes

    async def record(
        self, decide: Callable[[State], Fact | None], *, alone: bool = True, automatic: bool = False
    ) -> Fact | None:
        """Return the recorded fact once it is on disk; see `FactJob`. Raises what `decide` raises, and `NotMaster`."""
        job = FactJob(decide, alone)
        try:
            await self.written(job)
        except BaseException as error:
            log_change(job.change, error, automatic=automatic)
            raise
        log_change(job.change, automatic=automatic)
        return job.fact

    def submit(self, job: Job) -> None:
        """Submit a job; `job.done` is called on the loop. Raises `NotMaster`, `NotEnoughReplicas`."""
        if self.rejection is not None:
            self.check(to_sender=job.to_sender)
        self._begin(job)

    async def written(self, job: Written) -> Written:
        """Submit a job and return it once its result is on disk. Raises its error, and `NotMaster`."""
        answer: asyncio.Future[Written] = self._loop.create_future()

        def done(job: Written) -> None:
            if answer.cancelled():
                return
            if job.error:
                answer.set_exception(job.error)
            else:
                answer.set_result(job)

        job.done = done
        self.submit(job)
        return await answer

    async def settle(self, longest_s: float) -> None:
        """Wait until the writer has answered all jobs, but at most `longest_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                while self._pending:
                    self._room.clear()
                    await self._room.wait()

    # ---- answering ------------------------------------------------------------------------------

    def soon(self, call: Callable[[], object]) -> None:
        """Make a call after all jobs of the current commit are answered; otherwise in the next loop iteration."""
        if self._calls is None:
            self._loop.call_soon(call)
        else:
            self._calls.append(call)

    def _finish(self, jobs: list[Job], grown: Set[QueueKey]) -> None:
        calls: list[Callable[[], object]] = []
        self._calls = calls
        try:
            for job in jobs:
                self.pending_bytes -= self._pending.pop(job, 0)
                try:
                    # Checked again at the moment of acknowledgement: entries written while this broker led may have
                    # been truncated.
                    if self.rejection is not None and job.error is None and not job.replicates:
                        job.error = self.rejection(to_sender=job.to_sender)
                    job.done(job)
                    if isinstance(job, FactJob | ReplicaJob):
                        self._recorded(job)
                except Exception:
                    log.exception(_FAILED)
            for queue in grown:  # last: the frames of waiting pulls follow the answers
                self._arrivals.wake(queue)
        finally:
            self._calls = None
        self._stuck_since = math.inf
        self._room.set()
        for call in calls:
            try:  # each of them, whatever the others raise
                call()
            except Exception:
                log.exception(_FAILED)
