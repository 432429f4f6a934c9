"""The loop side of a broker: store, writes, long polls, and the tables of the role, which all calls share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from minimq_broker.calls.data_versions import DataVersions
from minimq_broker.calls.limits import LimitErrors, Limits
from minimq_broker.calls.long_polls import LongPolls
from minimq_broker.calls.pieces import IncompleteRequests
from minimq_broker.calls.streams import Streams
from minimq_broker.calls.writes import WriteRejection, Writes
from minimq_broker.commit.jobs import FactJob, ReplicaJob
from minimq_broker.commit.off_loop import uncancellable
from minimq_broker.commit.store import Store, StoreOptions
from minimq_broker.groups.role_tables import RoleTables
from minimq_broker.log.clock import FILE_NAME as CLOCK
from minimq_broker.log.clock import DeletionClock, lease_clock, now_ms
from minimq_broker.metrics.counters import Counters
from minimq_broker.state.facts import GroupDeleted, OffsetsCommitted, RouteFact, TopicDeleted
from minimq_broker.state.queue_ends import NOTHING_NEEDED
from minimq_broker.state.state import QueueKey
from minimq_common.wire.unsent import UnsentBudget


class Engine:
    """The parts of one broker that all calls share. Methods belong to the event loop, unless they say otherwise."""

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        limits: Limits,
        recovery_s: float = 0.0,
        *,
        alone: bool = True,
        rejection: WriteRejection | None = None,
    ) -> None:
        """`rejection` is checked before each write is accepted, and again before it is acknowledged."""
        self.limits = limits
        #: Return the log position from which on copies and replicas still need entries. Called on any thread.
        self.log_readers: list[Callable[[], int]] = []
        #: Called when the disk has reached a higher fill level. Called on any thread; must not block.
        self.disk_listeners: list[Callable[[], None]] = []
        #: Called when topics, or the permission of the broker, have changed.
        self.topic_listeners: list[Callable[[], None]] = []
        #: Called when the log has grown, at one of several replicas.
        self.log_listeners: list[Callable[[], None]] = []
        self.counters = Counters()
        self.rejections = LimitErrors()
        self.unsent = UnsentBudget(limits.max_unsent_bytes)
        self.incomplete = IncompleteRequests(limits.max_pending_bytes)
        self.streams = Streams()
        self._loop = asyncio.get_running_loop()
        self._recovery_s = recovery_s
        self.arrivals = LongPolls()
        open_store = partial(
            Store, path, options=options, alone=alone, grown=self._log_grew, disk_filled=self._disk_filled
        )
        self.writes = Writes(open_store, self.arrivals, limits, self._recorded, rejection)
        self.store = self.writes.store
        #: For the deletion of old data.
        self.clock = DeletionClock(path / CLOCK, self.store.newest_ms, clock_ms=now_ms, steady_s=lease_clock)
        #: `State.made` when topic changes were announced last.
        self._told = self.store.state.made
        self.versions = DataVersions(self.store)
        #: Of the current role.
        self.tables = self._new_tables(self.store.term)

    def lowest_needed(self) -> int:
        """Return the log position before which no reader of the log needs an entry. Thread-safe."""
        return min((lowest() for lowest in self.log_readers), default=NOTHING_NEEDED)

    def close(self) -> None:
        """Write the submitted jobs and close the store. Blocks."""
        self.clock.stop()
        self.store.close()

    # ---- roles ----------------------------------------------------------------------------------

    async def lead(self, term: int, *, waits_for_replicas: bool) -> None:
        """Begin a term in the store. Raises what `Writer.lead` and `ensure_open` raise."""
        await self.ensure_open()
        lead = asyncio.to_thread(self.store.writer.lead, term, waits_for_replicas=waits_for_replicas)
        await uncancellable(lead)

    async def follow(self) -> None:
        """Let the store accept only entries of a master. Raises what `ensure_open` raises."""
        await self.ensure_open()
        await uncancellable(asyncio.to_thread(self.store.writer.follow))

    def begin(self, term: int) -> None:
        """Begin a role: end all client streams, and start with new leases and groups."""
        self.streams.end()
        term = max(term, self.store.writer.state.term)
        self.versions.begin(term)
        self.tables = self._new_tables(term)

    def _new_tables(self, term: int) -> RoleTables:
        return RoleTables(term, self._loop.time() + self._recovery_s, self.store.writer.state)

    # ---- changes of the whole store ---------------------------------------------------------------

    async def truncate(self, position: int) -> None:
        """Delete all entries from a log position on. Readers are rejected meanwhile."""
        cut = uncancellable(asyncio.to_thread(self.store.truncate, position))
        await self._without_readers(cut, "this broker truncates entries that its master does not have")

    async def replace(self, copy: Callable[[Path, int], Awaitable[None]]) -> None:
        """Replace the content of the store by a copy. Readers are rejected meanwhile."""
        await self._without_readers(self._replace(copy), "this broker copies everything from its master")

    async def _replace(self, copy: Callable[[Path, int], Awaitable[None]]) -> None:
        store = self.store
        try:
            await uncancellable(asyncio.to_thread(store.close_files))
            await copy(store.path, store.options.segment_bytes)
        finally:
            await uncancellable(asyncio.to_thread(store.open))

    async def ensure_open(self) -> None:
        """Open the store again if that failed after a copy. Raises `StoreError`."""
        if not self.store.is_open:
            opening = uncancellable(asyncio.to_thread(self.store.open))
            await self._without_readers(opening, "this broker opens its store again")

    async def _without_readers(self, work: Awaitable[None], why: str) -> None:
        before = self.store.writer.state
        self.store.reject_readers(why)
        self.arrivals.wake_all()
        try:
            await work
        finally:
            self.store.accept_readers()
            if self.store.is_readable and self.store.state is not before:
                self.versions.count_replaced(before)
                self._announce_topics()

    # ---- callbacks of the store and of the writes ------------------------------------------------

    def _disk_filled(self) -> None:
        for listener in self.disk_listeners:
            listener()

    def _log_grew(self) -> None:
        if not self._loop.is_closed():
            for listener in self.log_listeners:
                self._loop.call_soon_threadsafe(listener)

    def _recorded(self, job: FactJob | ReplicaJob) -> None:
        if isinstance(job, ReplicaJob):
            if self._told != self.store.writer.state.made and self.store.is_readable:
                self._announce_topics()
            return
        fact = job.fact  # also with an error: it may be recorded all the same
        if isinstance(fact, TopicDeleted | GroupDeleted):  # rare, so all readers may check their topic again
            self.arrivals.wake_all()
            self.tables.retain_topics(self.store.writer.state)
        if isinstance(fact, OffsetsCommitted) and fact.forced:
            for item in fact.offsets:  # there may be messages to read again
                self.arrivals.wake(QueueKey(item.topic_id, item.queue_id))
        if isinstance(fact, RouteFact):
            self._tell_topics()

    def _announce_topics(self) -> None:
        self.arrivals.wake_all()
        self.tables.retain_topics(self.store.writer.state)
        self._tell_topics()

    def _tell_topics(self) -> None:
        self._told = self.store.writer.state.made
        for listener in self.topic_listeners:
            listener()
