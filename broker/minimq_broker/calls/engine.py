"""The engine: the store as the services see it on the event loop, and the long polls on its queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from minimq_broker.calls.limits import LimitErrors, Limits
from minimq_broker.calls.pieces import IncompleteRequests
from minimq_broker.calls.store_handle import StoreHandle, uncancellable
from minimq_broker.calls.streams import Streams
from minimq_broker.calls.writes import WriteRejection, Writes
from minimq_broker.commit.jobs import Job
from minimq_broker.commit.message_store import MessageStore, StoreOptions
from minimq_broker.groups.groups import GroupTable
from minimq_broker.groups.leases import LeaseTable
from minimq_broker.groups.role_tables import RoleTables
from minimq_broker.log.clock import FILE_NAME as CLOCK
from minimq_broker.log.clock import TOLERANCE_MS, DeletionClock, lease_clock, now_ms
from minimq_broker.metrics.counters import Counters
from minimq_broker.state.facts import Fact, GroupDeleted, OffsetsCommitted, RouteFact, TopicDeleted
from minimq_broker.state.queue_ends import NOTHING_NEEDED
from minimq_broker.state.state import QueueEnd, QueueKey, State
from minimq_common.wire.unsent import UnsentBudget


@dataclass(frozen=True, slots=True)
class EngineObserver:
    """Callbacks of an engine, called on the event loop unless stated otherwise."""

    #: Checked before each write is accepted, and again before it is acknowledged; None for a broker without replicas.
    rejection: WriteRejection | None
    #: Topics were created, changed or deleted, or the permission of the broker changed.
    topics_changed: Callable[[], None]
    log_grew: Callable[[], None]


class Engine:
    """Store, writes, long polls, groups and leases of one broker. All methods belong to the event loop's thread."""

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        limits: Limits,
        observer: EngineObserver,
        recovery_s: float = 0.0,
        *,
        alone: bool = True,
    ) -> None:
        self.limits = limits
        #: For the deletion of old data.
        self.clock = DeletionClock(path / CLOCK, self.newest_ms, clock_ms=now_ms, steady_s=lease_clock)
        #: Return the log position from which on copies and replicas still need entries. Called on any thread.
        self.log_readers: list[Callable[[], int]] = []
        #: Called when the disk has reached a higher fill level. Called on any thread; must not block.
        self.disk_listeners: list[Callable[[], None]] = []
        self.counters = Counters()
        self.rejections = LimitErrors()
        self.unsent = UnsentBudget(limits.max_unsent_bytes)
        self.incomplete = IncompleteRequests(limits.max_pending_bytes)
        self.streams = Streams()
        self.arrivals = LongPolls(self._queue_end)
        self.writes = Writes(self._submit, limits, self.counters, self, observer.rejection, self.arrivals.wake)
        self._loop = asyncio.get_running_loop()
        self.observer = observer
        self.handle = StoreHandle(
            path,
            options,
            self.writes.hand_over,
            alone=alone,
            clock_ms=now_ms,
            grown=self._log_grew,
            closing=self.arrivals.wake_all,
            replaced=self._state_replaced,
            disk_filled=self._disk_filled,
        )
        self._told = self.handle.any_store.state.made
        term, self._recovery_s = self.handle.any_store.term, recovery_s
        self.versions = DataVersions(term, lambda: self.handle.any_store.state)
        #: Of the current role.
        self.tables = self._new_tables(term)

    @property
    def store(self) -> MessageStore:
        """The store. Raises `SystemBusy` while it is not readable."""
        return self.handle.store

    @property
    def state(self) -> State:
        """Topics, ends and offsets; read-only. Raises `SystemBusy` while the store is not readable."""
        return self.handle.store.state

    @property
    def groups(self) -> GroupTable:
        return self.tables.groups

    @property
    def leases(self) -> LeaseTable:
        return self.tables.leases

    def _queue_end(self, queue: QueueKey) -> QueueEnd:
        return self.store.queue_end(queue)

    def _submit(self, job: Job) -> None:
        self.handle.any_store.submit(job)

    def newest_ms(self) -> int | None:
        """Return when the newest message was stored, in ms since 1970; None if there is none. Thread-safe."""
        return max((end.stored_ms for end in self.handle.any_store.state.ends.copy().values()), default=None)

    @property
    def stamps_ahead_ms(self) -> int:
        """By how many ms the newest message is ahead of the clock; 0 if by less than a minute."""
        ahead_ms = (self.newest_ms() or 0) - now_ms()
        return ahead_ms if ahead_ms > TOLERANCE_MS else 0

    def lowest_needed(self) -> int:
        """Return the log position before which no reader of the log needs an entry. Thread-safe."""
        return min((lowest() for lowest in self.log_readers), default=NOTHING_NEEDED)

    def close(self) -> None:
        """Write the submitted jobs and close the store. Blocks."""
        self.clock.stop()
        self.handle.close()

    # ---- roles ----------------------------------------------------------------------------------

    async def lead(self, term: int, *, waits_for_replicas: bool) -> None:
        """Begin a term in the store. Raises what `MessageStore.lead` and `StoreHandle.ensure_open` raise."""
        await self.handle.ensure_open()
        store = self.handle.any_store
        await uncancellable(asyncio.to_thread(store.lead, term, waits_for_replicas=waits_for_replicas))

    async def follow(self) -> None:
        """Let the store accept only entries of a master. Raises what `StoreHandle.ensure_open` raises."""
        await self.handle.ensure_open()
        await uncancellable(asyncio.to_thread(self.handle.any_store.follow))

    def begin(self, term: int) -> None:
        """Begin a role: end all client streams, and start with new leases and groups."""
        self.streams.end()
        term = max(term, self.handle.any_store.state.term)
        self.versions.begin(term)
        self.tables = self._new_tables(term)

    def _new_tables(self, term: int) -> RoleTables:
        return RoleTables(term, self._loop.time() + self._recovery_s, self.handle.any_store.state)

    # ---- callbacks of the store and of the writes ------------------------------------------------

    def _disk_filled(self) -> None:
        for listener in self.disk_listeners:
            listener()

    def _log_grew(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.observer.log_grew)

    def _state_replaced(self, before: State) -> None:
        self.versions.count_replaced(before)
        self._announce_topics()

    def recorded(self, fact: Fact) -> None:
        """React to a recorded fact, before its caller gets the answer."""
        if isinstance(fact, TopicDeleted | GroupDeleted):  # rare, so all readers may check their topic again
            self.arrivals.wake_all()
            self.tables.retain_topics(self.handle.any_store.state)
        if isinstance(fact, OffsetsCommitted) and fact.forced:
            for item in fact.offsets:  # there may be messages to read again
                self.arrivals.wake(QueueKey(item.topic_id, item.queue_id))
        if isinstance(fact, RouteFact):
            self._told = self.handle.any_store.state.made
            self.observer.topics_changed()

    def finished(self, *, maybe_recorded: bool) -> None:
        """Announce topic changes that no answered job reported. Called once all jobs of a commit are answered."""
        is_unannounced = maybe_recorded or self._told != self.handle.any_store.state.made
        if is_unannounced and not self.handle.is_closed:
            self._announce_topics()

    def _announce_topics(self) -> None:
        self._told = self.handle.any_store.state.made
        self.arrivals.wake_all()
        self.tables.retain_topics(self.handle.any_store.state)
        self.observer.topics_changed()


class DataVersions:
    """The versions of this broker's registrations. Belongs to the event loop.

    A later run has larger ones, so a name server replaces the registration of an earlier run.
    """

    def __init__(self, term: int, state: Callable[[], State]) -> None:
        self._term, self._state = term, state
        #: Added to versions: one for each role, and the changes counted by states that were replaced.
        self._before = 0

    @property
    def next(self) -> int:
        """The lowest version of a registration made from the state after this read."""
        return (self._term << 32) + self._before + self._state().made

    @property
    def answered(self) -> int:
        """The version from which on registrations include everything read from the state before this read."""
        return (self._term << 32) + self._before + self._state().begun

    def begin(self, term: int) -> None:
        """Begin a role."""
        self._term = term
        self._before += 1

    def count_replaced(self, before: State) -> None:
        """Keep the versions growing after the state `before` was replaced."""
        self._before += before.made + 1


class LongPolls:
    """The long polls of one broker. Belongs to the event loop; any thread may read their number."""

    def __init__(self, queue_end: Callable[[QueueKey], QueueEnd]) -> None:
        self._queue_end = queue_end
        self._waiting: dict[QueueKey, set[asyncio.Future[None]]] = {}
        self._loop = asyncio.get_running_loop()
        #: Called with each queue that has grown, or with None if all readers must check again. Must not raise.
        self.listeners: list[Callable[[QueueKey | None], None]] = []

    def __len__(self) -> int:
        return sum(map(len, self._waiting.copy().values()))

    async def wait(self, queue: QueueKey, offset: int, wait_s: float) -> None:
        """Wait until a queue may have grown beyond `offset`, its topic may be gone, or `wait_s` has passed."""
        if self._queue_end(queue).offset > offset:
            return
        waiter = self._loop.create_future()
        self._waiting.setdefault(queue, set()).add(waiter)
        timer = self._loop.call_later(wait_s, _resolve, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            waiters = self._waiting.get(queue)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._waiting[queue]

    def wake(self, queue: QueueKey) -> None:
        """Wake the readers of a queue, to check whether it has grown and whether they may still read."""
        for waiter in self._waiting.pop(queue, ()):
            _resolve(waiter)
        for listener in self.listeners:
            listener(queue)

    def wake_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for waiters in waiting.values():
            for waiter in waiters:
                _resolve(waiter)
        for listener in self.listeners:
            listener(None)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
