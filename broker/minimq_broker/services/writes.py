"""The way to the writer and back: jobs are submitted on the event loop, which receives their answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Set
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from minimq_broker.core.facts import Fact, RouteFact
from minimq_broker.core.state import QueueKey, State
from minimq_broker.services.administration import LoggedDecision
from minimq_broker.services.counters import Counters
from minimq_broker.services.limits import Limits
from minimq_broker.store.jobs import AppendJob, AppendStatus, AtomicJob, FactJob, Job, ReplicaJob
from minimq_common.errors import MiniMQError, SystemBusy

if TYPE_CHECKING:
    from minimq_broker.services.engine import Engine

log = logging.getLogger(__name__)

Written = TypeVar("Written", bound=Job)


#: Returns why nothing may be accepted or acknowledged now, None if it may; `to_sender` of a batch it may be stricter.
WriteRefusal = Callable[..., MiniMQError | None]


class Writes:
    """Jobs in flight to the disk, whose bytes are bounded. Belongs to the event loop."""

    def __init__(
        self,
        submit: Callable[[Job], None],
        limits: Limits,
        counters: Counters,
        observer: Engine,
        refusal: WriteRefusal | None,
        queue_grew: Callable[[QueueKey], None],
    ) -> None:
        self._submit = submit
        self._queue_grew = queue_grew
        self._limits = limits
        self._counters = counters
        self._observer = observer
        #: None: nothing ever prevents it.
        self.refusal = refusal
        #: Called with each batch that is handed to the writer: what they hand in is committed along with it.
        self.listeners: list[Callable[[AppendJob], object]] = []
        self._loop = asyncio.get_running_loop()
        #: What waits for the disk, and the bytes of its batches.
        self._pending: dict[Job, int] = {}
        self._pending_bytes = 0
        #: Of the jobs that are being finished.
        self._maybe_changed = self._maybe_recorded = False
        #: Calls to make once these are finished; None while none are.
        self._calls: list[Callable[[], object]] | None = None
        self._room = asyncio.Event()
        self._room.set()
        #: Time of the loop since when there was neither room nor a sign of life from the disk.
        self._stuck_since = math.inf

    @property
    def pending_bytes(self) -> int:
        """Bytes of batches that wait for the disk. Any thread may ask."""
        return self._pending_bytes

    def check(self, *, to_sender: bool = False) -> None:
        """Raise the reason why nothing may be accepted now, if any."""
        refusal = None if self.refusal is None else self.refusal(to_sender=to_sender)
        if refusal is not None:
            raise refusal

    # ---- handing in -----------------------------------------------------------------------------

    def offer(self, job: AppendJob) -> bool:
        """Hand a batch to the writer unless too much is in flight; `job.done` is called on the loop."""
        if self.refusal is not None and (refusal := self.refusal(to_sender=True)) is not None:
            raise refusal
        size = job.size
        if self._pending_bytes and self._pending_bytes + size > self._limits.max_pending_bytes:
            return False
        self._pending[job] = size
        self._pending_bytes += size
        self._submit(job)
        for listener in self.listeners:
            listener(job)
        return True

    async def append(self, job: AppendJob) -> None:
        """Hand a batch to the writer as `offer` does. Waits a moment while too much is in flight."""
        await self._room_for(job)
        self.offer(job)

    async def append_atomic(self, job: AtomicJob, check: Callable[[], None]) -> None:
        """Hand batches to the writer that are stored as a whole; `check` is called in the very step that does it."""
        await self._room_for(job)
        check()
        self._pending[job] = size = job.size
        self._pending_bytes += size
        self._submit(job)
        for batch in job.batches:
            for listener in self.listeners:
                listener(batch)

    async def _room_for(self, job: AppendJob | AtomicJob) -> None:
        came_at = self._loop.time()
        while True:
            self.check(to_sender=True)  # after a wait, too: a store that was closed would never answer
            if self._has_room(job):
                break
            self._room.clear()
            self._stuck_since = min(self._stuck_since, self._loop.time())
            try:
                # When the disk hangs, later callers are refused at once: each stream waits for one batch at a time.
                async with asyncio.timeout_at(min(came_at, self._stuck_since) + self._limits.busy_after_s):
                    await self._room.wait()
            except TimeoutError:
                if not self._has_room(job):
                    raise SystemBusy(
                        f"{self._pending_bytes:,} bytes of batches wait for the disk of the broker and leave no room "
                        f"since {self._limits.busy_after_s} s: send again later, or to another broker",
                        limit="pending-bytes",
                    ) from None

    def _has_room(self, job: AppendJob | AtomicJob) -> bool:
        return not self._pending_bytes or self._pending_bytes + job.size <= self._limits.max_pending_bytes

    async def record(
        self, decide: Callable[[State], Fact | None], *, alone: bool = True, keeps_log: bool = False
    ) -> Fact | None:
        """Return the recorded fact once it is on disk; see `FactJob`. Raises what `decide` raises, and `NotMaster`."""
        with LoggedDecision(decide) as decision:
            return (await self.written(FactJob(decision, alone, keeps_log))).fact

    def submit(self, job: Job) -> None:
        """Hand a job to the writer; `job.done` is called on the loop. Raises `NotMaster`."""
        if self.refusal is not None:
            self.check()
        self._pending[job] = 0
        self._submit(job)

    async def written(self, job: Written) -> Written:
        """Return a job once its result is on disk. Raises its error, and `NotMaster`."""
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
        """Return when all that was handed to the writer is answered, or after a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                while self._pending:
                    self._room.clear()
                    await self._room.wait()

    # ---- taking answers over --------------------------------------------------------------------

    def hand_over(self, jobs: list[Job], grown: Set[QueueKey]) -> None:
        """Take answers over from the thread that has them; see `Notify`."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish, jobs, grown)

    def soon(self, call: Callable[[], object]) -> None:
        """Make a call once all jobs of the commit that is being answered are finished, or in the next iteration."""
        if self._calls is None:
            self._loop.call_soon(call)
        else:
            self._calls.append(call)

    def _finish(self, jobs: list[Job], grown: Set[QueueKey]) -> None:
        calls: list[Callable[[], object]] = []
        self._calls = calls
        try:
            for queue in grown:
                _do(self._queue_grew, queue)
            self._maybe_changed = self._maybe_recorded = False
            for job in jobs:
                self._pending_bytes -= self._pending.pop(job, 0)
                _do(self._answer, job)
        finally:
            self._calls = None
        self._stuck_since = math.inf
        if not self._room.is_set():
            self._room.set()
        if self._maybe_changed or self._maybe_recorded:
            _do(partial(self._observer.finished, maybe_recorded=self._maybe_recorded))
        for call in calls:
            _do(call)

    def _answer(self, job: Job) -> None:
        # The moment in which it is acknowledged: entries written while this broker led may have been truncated.
        if self.refusal is not None and job.error is None and not job.replicates:
            job.error = self.refusal(to_sender=job.to_sender)
        match job:
            case AppendJob() if job.error is None:
                self._count(job)
            case AtomicJob() if job.error is None:
                for batch in job.batches:
                    self._count(batch)
            case FactJob() if job.error is not None:  # it may stand though, counted by the one before it
                self._maybe_changed = True
                self._maybe_recorded = self._maybe_recorded or isinstance(job.fact, RouteFact)
            case FactJob() if job.fact is not None:
                self._observer.recorded(job.fact)
            case ReplicaJob():
                self._maybe_changed = True
        job.done(job)

    def _count(self, batch: AppendJob) -> None:
        is_new = batch.status is not AppendStatus.ALREADY_STORED
        if is_new:
            self._counters.messages_in += batch.header.count
            self._counters.bytes_in += batch.size
        if batch.due is not None:
            if is_new:
                self._counters.delayed_in += batch.header.count
            self._observer.delayed(batch.due.due_ms)


def _do(call: Callable[..., object], *arguments: object) -> None:
    """Call and log any exception, so that the other jobs of the commit are still answered."""
    try:
        call(*arguments)
    except Exception:
        log.exception("writes: a callback of a commit failed")
