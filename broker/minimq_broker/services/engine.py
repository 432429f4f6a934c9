"""The engine: the store as the services see it, on the event loop.

It turns the writer's answers into awaitable results, wakes long polls, and bounds the bytes that wait for the disk.
All methods belong to the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Set
from dataclasses import dataclass, field
from pathlib import Path

from minimq_broker.core.facts import Fact, Told, TopicDeleted
from minimq_broker.core.groups import GroupTable
from minimq_broker.core.leases import LeaseTable, Recovery
from minimq_broker.core.long_poll import LongPoll
from minimq_broker.core.state import QueueKey, State
from minimq_broker.store.jobs import AnyJob, AppendJob, FactJob, SendStatus
from minimq_broker.store.message_store import MessageStore, StoreOptions
from minimq_common import distribution
from minimq_common.distribution import Distribution
from minimq_common.errors import SystemBusy

log = logging.getLogger(__name__)

#: When a sender for whom there was no room may come back, in seconds.
_COME_BACK_S = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """What the broker lets through.

    Attributes:
        max_body_bytes: largest body of a message, in bytes.
        max_batch_bytes: largest batch, in bytes.
        max_pending_bytes: bytes of batches that may wait for the disk; more are not read from the network.
        busy_after_s: seconds that a batch may wait for room among these bytes.
    """

    max_body_bytes: int
    max_batch_bytes: int
    max_pending_bytes: int
    busy_after_s: float = 0.5


@dataclass(slots=True)
class Counters:
    """What was done since the start: messages, and what retention has deleted.

    Attributes:
        bytes_in, bytes_out: those of batches.
        refused: batches that were not taken, by the code of the error.
        append_s: seconds from the arrival of a batch to its answer.
    """

    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    segments_deleted: int = 0
    bytes_deleted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    append_s: Distribution = field(default_factory=lambda: Distribution(distribution.SECONDS))


class Engine:
    """Store, long polls, groups and leases of one broker.

    Args:
        path: the data directory.
        options: how the store keeps its data.
        limits: what is let through.
        topics_changed: called when topics were created, changed or deleted, or when the permission of the broker was.
        recovery_s: seconds after the start in which former owners of queues have precedence.
    """

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        limits: Limits,
        topics_changed: Callable[[], None],
        recovery_s: float = 0.0,
    ) -> None:
        self.limits = limits
        self.counters = Counters()
        self._loop = asyncio.get_running_loop()
        self._topics_changed = topics_changed
        self._long_poll: LongPoll[asyncio.Future[None]] = LongPoll()
        self._pending_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        #: Time of the loop since when there was neither room nor a sign of life from the disk.
        self._stuck_since = math.inf
        self._receivers: set[asyncio.Task[None]] = set()
        self.store = MessageStore(path, self._hand_over, options, now_ms)
        self.groups = GroupTable(self.store.term << 32)
        recovery = Recovery(self._loop.time() + recovery_s, frozenset(self.store.state.started.copy()))
        self.leases = LeaseTable(self.store.term, recovery)

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
    def state(self) -> State:
        """Topics, ends and offsets; only to look at."""
        return self.store.state

    # Versions of a later run are larger: a name server that holds one of an earlier run takes this broker in its place.

    @property
    def data_version(self) -> int:
        """What is registered from `state` after this was read is of this version, or a later one."""
        return (self.store.term << 32) + self.state.made

    @property
    def answered_version(self) -> int:
        """What was read from `state` before this is shown by a registration of this version, or a later one."""
        return (self.store.term << 32) + self.state.begun

    def close(self) -> None:
        """Write what was handed in and close the store."""
        self.store.close()

    # ---- streams --------------------------------------------------------------------------------

    def receive(self, requests: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Begin to receive what never ends by itself, such as the requests of a stream; it is cancelled at the stop."""
        task = asyncio.create_task(requests, name=name)
        self._receivers.add(task)
        task.add_done_callback(self._received)
        return task

    def _received(self, task: asyncio.Task[None]) -> None:
        self._receivers.discard(task)
        if not task.cancelled() and task.exception() is not None:
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
        """
        came_at = self._loop.time()
        while not self._has_room(job):
            self._room.clear()
            self._stuck_since = min(self._stuck_since, self._loop.time())
            try:
                # When the disk hangs, those who come later are told at once: each stream waits for one batch at a time.
                async with asyncio.timeout_at(min(came_at, self._stuck_since) + self.limits.busy_after_s):
                    await self._room.wait()
            except TimeoutError:
                if self._has_room(job):
                    break
                raise SystemBusy(
                    f"{self._pending_bytes:,} bytes of batches wait for the disk of the broker and leave no room "
                    f"since {self.limits.busy_after_s} s: send again later, or to another broker",
                    retry_after_s=_COME_BACK_S,
                ) from None
        self._pending_bytes += job.size
        self.store.submit(job)

    def _has_room(self, job: AppendJob) -> bool:
        return not self._pending_bytes or self._pending_bytes + job.size <= self.limits.max_pending_bytes

    async def record(self, decide: Callable[[State], Fact | None], *, alone: bool = True) -> Fact | None:
        """Return the recorded fact once it is on disk; see `FactJob`. Raises what `decide` raises."""
        answer: asyncio.Future[Fact | None] = self._loop.create_future()

        def done(job: FactJob) -> None:
            if answer.cancelled():
                return
            if job.error:
                answer.set_exception(job.error)
            else:
                answer.set_result(job.fact)

        self.store.submit(FactJob(decide, done, alone))
        return await answer

    def _hand_over(self, jobs: list[AnyJob], grown: Set[QueueKey]) -> None:
        """Take answers over from the writer's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish, jobs, grown)

    def _finish(self, jobs: list[AnyJob], grown: Set[QueueKey]) -> None:
        for queue in grown:
            self._wake(self._long_poll.arrived(queue))
        for job in jobs:
            if isinstance(job, AppendJob):
                self._pending_bytes -= job.size
                if job.error is None and job.status is not SendStatus.ALREADY_STORED:
                    self.counters.messages_in += job.header.count
                    self.counters.bytes_in += job.size
                job.done(job)
            else:
                if job.fact is not None and job.error is None:
                    self._react(job.fact)
                job.done(job)
        self._stuck_since = math.inf
        self._room.set()

    def _react(self, fact: Fact) -> None:
        if isinstance(fact, TopicDeleted):  # rare, so everybody may look for their topic again
            self._wake(self._long_poll.all())
            self.leases.retain_topics({topic.topic_id for topic in self.state.topics.copy().values()})
        if isinstance(fact, Told):
            self._topics_changed()

    # ---- waiting --------------------------------------------------------------------------------

    async def arrival(self, queue: QueueKey, offset: int, wait_s: float) -> None:
        """Return when a queue may have grown beyond `offset`, its topic is gone, or the time is over."""
        if self.state.end(queue).offset > offset:
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


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def now_ms() -> int:
    """Return the time of day in ms since 1970."""
    return time.time_ns() // 1_000_000
