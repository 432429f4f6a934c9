"""A store for tests of the kernel: jobs handed in as plain calls, a clock that is set by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from minimq_broker.backup.check import check_directory
from minimq_broker.commit.jobs import AppendJob, AtomicJob, FactJob, Job, OffsetsMoved, Progress, ReplicaJob
from minimq_broker.commit.store import Store, StoreOptions
from minimq_broker.features.feature import Hold
from minimq_broker.log.rows import ReadLimits, StoredBatch
from minimq_broker.state.facts import Fact, OffsetsCommitted, Topic, TopicDeleted, TopicSet
from minimq_broker.state.state import QueueKey, State
from minimq_common.batch import header as batch
from minimq_common.batch.builder import BatchBuilder
from minimq_common.batch.records import RecordBatch
from minimq_common.model import Message, Permission
from minimq_common.names import DEAD_LETTER_PREFIX

TIMEOUT_S = 60.0
#: No checkpoint by time, so that a test decides when there is one.
QUIET = StoreOptions(checkpoint_interval_s=3600.0)


class Clock:
    """The time of day in ms, which goes on only when told to."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def batches_of(store: Store, queue: QueueKey, offset: int, max_messages: int, max_bytes: int) -> list[StoredBatch]:
    """Return the batches of a queue from the one that holds `offset` on."""
    return store.search(queue, offset, ReadLimits(max_messages, max_bytes))[0]


def make_batch(bodies: Sequence[bytes], tag: str | None = None) -> bytes:
    """Return a batch whose records have these bodies, without a number: it is stored as often as it is sent."""
    return _build(bodies, tag, 0, 0, 0)


def numbered_batch(producer_id: int, sequence: int, *bodies: bytes, unsettled: int = 1 << 20) -> bytes:
    """Return a batch that is stored once; `unsettled` numbers before its own may still be sent again."""
    return _build(bodies or [b"%d/%d" % (producer_id, sequence)], None, producer_id, sequence, unsettled)


def _build(bodies: Sequence[bytes], tag: str | None, producer_id: int, sequence: int, unsettled: int) -> bytes:
    builder = BatchBuilder(32 << 20)
    builder.add([Message("", body, tag) for body in bodies])
    return builder.build(1_600_000_000_000, producer_id, sequence, unsettled)


class OpenStore:
    """A message store, open. Every call waits for the disk unless it says otherwise."""

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        clock: Clock,
        *,
        alone: bool = True,
        grown: Callable[[], None] | None = None,
    ) -> None:
        self.path = path
        self.options = options
        self.clock = clock
        self.grown: list[QueueKey] = []
        self.store = Store(path, self._notify, options, clock, alone=alone, grown=grown)

    def _notify(self, jobs: list[Job], grown: Set[QueueKey]) -> None:
        self.grown += grown
        for job in jobs:
            job.done(job)

    @property
    def state(self) -> State:
        return self.store.state

    def close(self) -> None:
        self.store.close()

    # ---- writing ------------------------------------------------------------------------------------

    def submit(self, topic: str, queue_id: int, data: bytes, hold: Hold | None = None) -> Future[AppendJob]:
        """Hand a batch in without waiting."""
        future: Future[AppendJob] = Future()

        def done(job: AppendJob) -> None:
            if job.error is None:
                future.set_result(job)
            else:
                future.set_exception(job.error)

        self.store.writer.submit(AppendJob(topic, queue_id, data, batch.read_header(data), hold, done=done))
        return future

    def submit_atomic(
        self,
        batches: Sequence[tuple[str, int, bytes]],
        offsets: OffsetsCommitted | None = None,
        begins: Sequence[int] = (),
        progress: Progress | None = None,
    ) -> Future[AtomicJob]:
        """Hand batches in, by topic and queue, and what a group has consumed, without waiting."""
        future: Future[AtomicJob] = Future()

        def done(job: AtomicJob) -> None:
            if job.error is None:
                future.set_result(job)
            else:
                future.set_exception(job.error)

        jobs = [AppendJob(topic, queue_id, data, batch.read_header(data)) for topic, queue_id, data in batches]
        self.store.writer.submit(
            AtomicJob(jobs, progress or (Progress() if offsets is None else OffsetsMoved(offsets, begins)), done=done)
        )
        return future

    def append(self, topic: str, queue_id: int, *bodies: bytes) -> int:
        """Append a batch and return the offset of its first record."""
        return self.submit(topic, queue_id, make_batch(bodies)).result(TIMEOUT_S).place.base_offset

    def record(self, decide: Fact | Callable[[State], Fact | None], *, alone: bool = True) -> Fact | None:
        """Record a fact, or what is decided; return it."""
        return self.submit_fact(decide, alone=alone).result(TIMEOUT_S)

    def submit_fact(self, decide: Fact | Callable[[State], Fact | None], *, alone: bool = True) -> Future[Fact | None]:
        """Hand a fact in without waiting."""
        future: Future[Fact | None] = Future()

        def done(job: FactJob) -> None:
            if job.error is None:
                future.set_result(job.fact)
            else:
                future.set_exception(job.error)

        self.store.writer.submit(FactJob(decide if callable(decide) else lambda _: decide, alone, done=done))
        return future

    def create_topic(self, name: str, queues: int = 1, permission: Permission = Permission.READ_WRITE) -> None:
        lasting = name.startswith(DEAD_LETTER_PREFIX)
        self.record(lambda state: TopicSet(Topic(name, state.position, queues, queues, permission, lasting=lasting)))

    def delete_topic(self, name: str) -> None:
        self.record(TopicDeleted(name))

    # ---- as a slave ---------------------------------------------------------------------------------

    def submit_entries(self, position: int, entries: Sequence[bytes]) -> Future[ReplicaJob]:
        """Hand entries of a master in without waiting."""
        future: Future[ReplicaJob] = Future()

        def done(job: ReplicaJob) -> None:
            if job.error is None:
                future.set_result(job)
            else:
                future.set_exception(job.error)

        self.store.writer.submit(ReplicaJob(position, entries, done=done))
        return future

    def take_from(self, master: OpenStore, max_bytes: int = 1 << 40) -> None:
        """Store entries of a master that are not here yet, about so many bytes of them."""
        position = self.store.end
        self.submit_entries(position, master.store.entries(position, max_bytes)).result(TIMEOUT_S)

    # ---- reading ------------------------------------------------------------------------------------

    def key(self, topic: str, queue_id: int) -> QueueKey:
        return self.state.queue(topic, queue_id)

    def read(
        self, topic: str, queue_id: int, offset: int, max_messages: int = 1 << 40, max_bytes: int = 1 << 40
    ) -> list[StoredBatch]:
        return batches_of(self.store, self.key(topic, queue_id), offset, max_messages, max_bytes)

    def bodies(self, topic: str, queue_id: int, offset: int = 0) -> list[bytes]:
        """Return the bodies of a queue from an offset on."""
        return [
            body
            for stored in self.read(topic, queue_id, offset)
            for body in RecordBatch(stored.data).bodies(max(offset - stored.base_offset, 0))
        ]


class Stores:
    """Opens stores; all are closed and checked at the end of the test."""

    kind = OpenStore

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        #: Directories that a test has damaged on purpose.
        self.damaged: set[Path] = set()
        self._opened: list[OpenStore] = []

    def open(
        self, name: str = "data", *, alone: bool = True, grown: Callable[[], None] | None = None, **options: Any
    ) -> OpenStore:
        options_now = dataclasses.replace(QUIET, **options)
        opened = self.kind(self.folder / name, options_now, self.clock, alone=alone, grown=grown)
        self._opened.append(opened)
        return opened

    def close(self) -> None:
        for opened in self._opened:
            opened.close()
        for path in {opened.path for opened in self._opened} - self.damaged:
            findings = check_directory(path).findings
            assert findings == [], findings
