"""The engine: the store as the services see it, on the event loop.

It turns the writer's answers into awaitable results, wakes long polls, and bounds the bytes that wait for the disk.
All methods belong to the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Set
from pathlib import Path
from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError

from minimq_broker.core.facts import Fact, GroupDeleted, Told, TopicDeleted
from minimq_broker.core.groups import GroupTable, Remembered
from minimq_broker.core.leases import LeaseTable, Recovery
from minimq_broker.core.long_poll import LongPoll
from minimq_broker.core.state import QueueKey, State
from minimq_broker.services.administration import LoggedDecision
from minimq_broker.services.counters import Counters
from minimq_broker.services.group_offsets import GroupOffsets
from minimq_broker.services.limits import Limits
from minimq_broker.services.store_slot import StoreSlot, to_the_end
from minimq_broker.store.jobs import AnyJob, AppendJob, FactJob, PublishJob, ReplicaJob, SendStatus
from minimq_broker.store.kept_offsets import FILE_NAME, KeptOffsets
from minimq_broker.store.message_store import MessageStore, StoreOptions
from minimq_common.epochs import first_epoch
from minimq_common.errors import MiniMQError, SystemBusy
from minimq_common.intake import Intake
from minimq_common.unsent import Unsent

log = logging.getLogger(__name__)

Written = TypeVar("Written", FactJob, PublishJob)

#: When a sender for whom there was no room may come back, in seconds.
_COME_BACK_S = 0.5


class Refusal(Protocol):
    """Says why nothing may be accepted or acknowledged at this moment; None when it may."""

    def __call__(self, *, to_sender: bool) -> MiniMQError | None:
        """Return it; what a sender is told of its batch may be stricter than what others are told."""


def _accept(*, to_sender: bool) -> None:
    """Accept everything, as a broker does that stands alone."""


class Engine:
    """Store, long polls, groups and leases of one broker.

    Args:
        path: the data directory.
        options: how the store keeps its data.
        limits: what is let through.
        topics_changed: called when topics were created, changed or deleted, or when the permission of the broker was.
        recovery_s: seconds after the begin of a role in which former owners of queues have precedence.
        alone: there is no other replica.
        deletion_ms: the time by which old data is deleted, in ms since 1970.

    Attributes:
        refusal: asked before anything is accepted, and again at the moment in which it is acknowledged.
        grown: called when the log has grown.
        slot: has the store.
        unsent: bounds what is written to clients and not read by them.
        intake: bounds what they have sent and is not taken in.
        offsets: those that groups commit.
        topics_came: called when topics may have come, or have got more queues.
    """

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        limits: Limits,
        topics_changed: Callable[[], None],
        recovery_s: float = 0.0,
        *,
        alone: bool = True,
        deletion_ms: Callable[[], int] | None = None,
    ) -> None:
        self.deletion_ms = deletion_ms or now_ms
        self.refusal: Refusal = _accept
        self.grown: Callable[[], None] = lambda: None
        self.topics_came: Callable[[], None] = lambda: None
        self.limits = limits
        self.counters = Counters()
        self.unsent = Unsent(limits.max_unsent_bytes)
        self.intake = Intake(limits.max_incoming_bytes)
        self._loop = asyncio.get_running_loop()
        self._topics_changed = topics_changed
        self._long_poll: LongPoll[asyncio.Future[None]] = LongPoll()
        self._pending_bytes = 0
        self._pending_records = 0
        self._room = asyncio.Event()
        self._room.set()
        #: Time of the loop since when there was neither room nor a sign of life from the disk.
        self._stuck_since = math.inf
        self._receivers: set[asyncio.Task[None]] = set()
        self._recovery_s = recovery_s
        self.slot = StoreSlot(
            path,
            options,
            alone=alone,
            notify=self._hand_over,
            grown=self._log_grew,
            clock_ms=now_ms,
            deletion_ms=self.deletion_ms,
        )
        self.slot.closing, self.slot.replaced = self._store_closes, self._state_replaced
        try:
            self.offsets = GroupOffsets(self, None if alone else KeptOffsets(path / FILE_NAME))
        except BaseException:
            self._store.close()
            raise
        self._term = self._store.term
        #: What was added to data versions by states that were replaced, and by roles.
        self._versions_before = 0
        self._told = self._store.state.made
        self._set_tables()

    # What metrics show: any thread may ask.

    @property
    def pending_bytes(self) -> int:
        """Bytes of batches that wait for the disk."""
        return self._pending_bytes

    @property
    def long_polls(self) -> int:
        """Pulls that wait for messages."""
        return len(self._long_poll)

    @property
    def streams(self) -> Counter[str]:
        """Open streams by the call that they are of."""
        return Counter(task.get_name().partition("-")[0] for task in self._receivers.copy())

    @property
    def store(self) -> MessageStore:
        """The store. Raises `SystemBusy` while nobody may look into it."""
        return self.slot.store

    def newest_ms(self) -> int | None:
        """Return when the newest message was stored, in ms since 1970; None when there is none. Any thread may ask."""
        return max((end.stored_ms for end in self._store.state.ends.copy().values()), default=None)

    @property
    def _store(self) -> MessageStore:
        return self.slot.any_store

    @property
    def state(self) -> State:
        """Topics, ends and offsets; only to look at. Raises as `store` does."""
        return self.store.state

    # Versions of a later run are larger: a name server that holds one of an earlier run takes this broker in its place.

    @property
    def data_version(self) -> int:
        """What is registered from `state` after this was read is of this version, or a later one."""
        return (self._term << 32) + self._versions_before + self.state.made

    @property
    def answered_version(self) -> int:
        """What was read from `state` before this is shown by a registration of this version, or a later one."""
        return (self._term << 32) + self._versions_before + self.state.begun

    def close(self) -> None:
        """Write what was handed in and close the store."""
        self.slot.close()
        self.offsets.close()

    # ---- roles ----------------------------------------------------------------------------------

    def _log_grew(self) -> None:
        """Take over from the writer's thread that the log has grown."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell_growth)

    def _tell_growth(self) -> None:
        self.grown()

    async def lead(self, term: int, *, waits_for_replicas: bool) -> None:
        """Let the store begin a term. Raises as `MessageStore.lead` and `StoreSlot.ensure_open` do."""
        await self.slot.ensure_open()
        store = self._store
        await to_the_end(asyncio.to_thread(store.lead, term, waits_for_replicas=waits_for_replicas))

    async def follow(self) -> None:
        """Let the store write nothing but what a master sends. Raises as `StoreSlot.ensure_open` does."""
        await self.slot.ensure_open()
        await to_the_end(asyncio.to_thread(self._store.follow))

    def take(self, job: ReplicaJob) -> None:
        """Hand entries of a master to the writer; `job.done` is called on the loop."""
        self._store.submit(job)

    def begin(self, term: int, *, stand_in: int | None = None) -> None:
        """Begin a role: clients come anew, to other leases and groups.

        Args:
            term: of the master.
            stand_in: how many times this slave has served groups by now because there is no master; None when it
                does not.
        """
        self.end_streams()
        self.offsets.keeps = stand_in is not None
        self._term = max(term, self._store.state.term)
        self._versions_before += 1
        self._set_tables(stand_in)

    def _set_tables(self, stand_in: int | None = None) -> None:
        state = self._store.state
        until = self._loop.time() + self._recovery_s
        self.groups = GroupTable(first_epoch(self._term, stand_in), Remembered(until, state.agreements.copy()))
        recovery = Recovery(until, frozenset(state.started.copy()))
        self.leases = LeaseTable(self._term, recovery, stand_in=stand_in)

    def _store_closes(self) -> None:
        self._wake(self._long_poll.all())

    def _state_replaced(self, before: State) -> None:
        self._versions_before += before.made + 1
        self._look_for_topics()

    def _look_for_topics(self) -> None:
        """Tell of topics that have changed without anybody here having asked for it."""
        self._told = self._store.state.made
        self._wake(self._long_poll.all())
        self.leases.retain_topics({topic.topic_id for topic in self._store.state.topics.copy().values()})
        self._topics_changed()
        self.topics_came()

    # ---- streams --------------------------------------------------------------------------------

    def receive(self, requests: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Begin to receive what never ends by itself, such as the requests of a stream; it is cancelled at the stop."""
        task = asyncio.create_task(requests, name=name)
        self._receivers.add(task)
        task.add_done_callback(self._received)
        return task

    def _received(self, task: asyncio.Task[None]) -> None:
        self._receivers.discard(task)
        if task.cancelled() or isinstance(task.exception(), MiniMQError | DecodeError):  # of which the client is told
            return
        if task.exception() is not None:
            log.warning("stream: ended by an error name=%s error=%r", task.get_name(), task.exception())

    def end_streams(self) -> None:
        """Receive no further request: each stream answers what it has taken, and ends in good order."""
        for task in self._receivers:
            task.cancel()

    # ---- writing --------------------------------------------------------------------------------

    async def append(self, job: AppendJob) -> None:
        """Hand a batch to the writer; `job.done` is called on the loop. Waits a moment while too much is on its way.

        Raises:
            SystemBusy: there was no room for too long.
            NotMaster, NotEnoughReplicas: this broker may not take it now.
        """
        came_at = self._loop.time()
        while True:
            self.check(to_sender=True)  # after a wait, too: a store that was closed would never answer
            if self._has_room(job):
                break
            self._room.clear()
            self._stuck_since = min(self._stuck_since, self._loop.time())
            try:
                # When the disk hangs, those who come later are told at once: each stream waits for one batch at a time.
                async with asyncio.timeout_at(min(came_at, self._stuck_since) + self.limits.busy_after_s):
                    await self._room.wait()
            except TimeoutError:
                if not self._has_room(job):
                    raise SystemBusy(
                        f"{self._pending_bytes:,} bytes of batches wait for the disk of the broker and leave no room "
                        f"since {self.limits.busy_after_s} s: send again later, or to another broker",
                        retry_after_s=_COME_BACK_S,
                    ) from None
        self._pending_bytes += job.size
        self._store.submit(job)

    async def settle(self, longest_s: float) -> None:
        """Return when all that was handed to the writer is answered, or after a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                while self._pending_bytes or self._pending_records:
                    self._room.clear()
                    await self._room.wait()

    def check(self, *, to_sender: bool = False) -> None:
        """Raise the reason for which nothing may be accepted at this moment, if there is one."""
        refusal = self.refusal(to_sender=to_sender)
        if refusal is not None:
            raise refusal

    def _has_room(self, job: AppendJob) -> bool:
        return not self._pending_bytes or self._pending_bytes + job.size <= self.limits.max_pending_bytes

    async def record(
        self, decide: Callable[[State], Fact | None], *, alone: bool = True, keeps_log: bool = False
    ) -> Fact | None:
        """Return the recorded fact once it is on disk; see `FactJob`. Raises what `decide` raises, and `NotMaster`."""
        with LoggedDecision(decide) as decision:
            return (await self._written(lambda done: FactJob(decision, done, alone, keeps_log))).fact

    async def publish(self, name: str) -> int:
        """Publish some of what is decided of a transaction, and return how many batches wait no more; 0: none is left.

        Raises:
            StoreFull: the disk is nearly full.
            NotMaster, NotEnoughReplicas: this broker may not write now.
        """
        return (await self._written(lambda done: PublishJob(name, done))).published

    async def _written(self, make: Callable[[Callable[[Written], None]], Written]) -> Written:
        """Return a job once it is written, which is made with what it shall call then. Raises its error."""
        self.check()
        answer: asyncio.Future[Written] = self._loop.create_future()

        def done(job: Written) -> None:
            self._pending_records -= 1
            if answer.cancelled():
                return
            if job.error:
                answer.set_exception(job.error)
            else:
                answer.set_result(job)

        self._pending_records += 1
        self._store.submit(make(done))
        return await answer

    def _hand_over(self, jobs: list[AnyJob], grown: Set[QueueKey]) -> None:
        """Take answers over from the writer's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish, jobs, grown)

    def _finish(self, jobs: list[AnyJob], grown: Set[QueueKey]) -> None:
        for queue in grown:
            self._wake(self._long_poll.arrived(queue))
        may_have_changed = may_stand = False
        for job in jobs:
            if isinstance(job, ReplicaJob):
                may_have_changed = True
                job.done(job)
                continue
            # The moment in which it is acknowledged: what was written while this broker led may be no more.
            job.error = job.error or self.refusal(to_sender=isinstance(job, AppendJob))
            if isinstance(job, AppendJob):
                self._pending_bytes -= job.size
                if job.error is None and job.status is not SendStatus.ALREADY_STORED:
                    self.counters.messages_in += job.header.count
                    self.counters.bytes_in += job.size
                job.done(job)
            elif isinstance(job, PublishJob):
                job.done(job)
            else:
                if job.fact is not None and job.error is None:
                    self._react(job.fact)
                may_have_changed = may_have_changed or job.error is not None
                # It may stand though it is answered by an error, and may have been counted by the one before it.
                may_stand = may_stand or (job.error is not None and isinstance(job.fact, Told))
                job.done(job)
        self._stuck_since = math.inf
        self._room.set()
        is_untold = may_stand or (may_have_changed and self._told != self._store.state.made)
        if is_untold and not self.slot.is_closed:
            self._look_for_topics()

    def _react(self, fact: Fact) -> None:
        if isinstance(fact, TopicDeleted | GroupDeleted):  # rare, so everybody may look for their topic again
            self._wake(self._long_poll.all())
            self.leases.retain_topics({topic.topic_id for topic in self._store.state.topics.copy().values()})
        if isinstance(fact, Told):
            self._told = self._store.state.made
            self._topics_changed()
            self.topics_came()

    # ---- waiting --------------------------------------------------------------------------------

    async def arrival(self, queue: QueueKey, offset: int, wait_s: float) -> None:
        """Return when a queue may have grown beyond `offset`, its topic is gone, or the time is over."""
        if self.store.queue_end(queue).offset > offset:
            return
        waiter = self._loop.create_future()
        self._long_poll.add(queue, waiter)
        timer = self._loop.call_later(wait_s, _resolve, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._long_poll.remove(queue, waiter)

    def wake(self, queue: QueueKey) -> None:
        """Let all who wait for a queue look again whether they still may."""
        self._wake(self._long_poll.arrived(queue))

    def _wake(self, waiters: set[asyncio.Future[None]]) -> None:
        for waiter in waiters:
            _resolve(waiter)


def raise_failure(receiver: asyncio.Task[None]) -> None:
    """Raise the error by which the requests of a stream have ended, if it is one that its client is to be told."""
    failure = None if receiver.cancelled() or not receiver.done() else receiver.exception()
    if isinstance(failure, MiniMQError | DecodeError):
        raise failure


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def now_ms() -> int:
    """Return the time of day in ms since 1970."""
    return time.time_ns() // 1_000_000
