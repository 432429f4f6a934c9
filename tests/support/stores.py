"""A store for tests of features: their jobs, too, are plain calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from minimq_broker.commit.jobs import AppendJob, AtomicJob, Progress
from minimq_broker.features.delayed.jobs import DueJob, RecallJob
from minimq_broker.features.delayed.table import Delay, RecallOutcome
from minimq_broker.features.staged.facts import StagedSequences, TransactionDecided
from minimq_broker.features.staged.jobs import EndJob, PublishJob
from minimq_broker.features.staged.staging import HalfOutcome, TransactionHold, TransactionId
from minimq_broker.features.work_queues.settling import Settled
from minimq_broker.features.work_queues.uncommitted_pops import PopJob
from minimq_broker.state.facts import OffsetsCommitted
from minimq_broker.state.queue_ends import HeldKey
from support import kernel_stores
from support.kernel_stores import TIMEOUT_S, make_batch


class OpenStore(kernel_stores.OpenStore):
    """A message store with the jobs of features, open."""

    def submit_atomic(
        self,
        batches: Sequence[tuple[str, int, bytes]],
        offsets: OffsetsCommitted | None = None,
        begins: Sequence[int] = (),
        progress: Progress | None = None,
        settles: PopJob | None = None,
    ) -> Future[AtomicJob]:
        if settles is not None:
            progress = Settled(settles, bool(batches), lambda step: None)
        return super().submit_atomic(batches, offsets, begins, progress)

    def stage(self, name: str, number: int, topic: str, queue_id: int, data: bytes) -> AppendJob:
        """Stage a batch for a transaction."""
        return self.submit(topic, queue_id, data, TransactionHold(TransactionId(name, number))).result(TIMEOUT_S)

    def decide(self, name: str, number: int, parts: dict[int, Sequence[int]]) -> None:
        """Decide on a transaction: sequence numbers by producer."""
        staged = tuple(StagedSequences(producer_id, tuple(sequences)) for producer_id, sequences in parts.items())
        self.record(TransactionDecided(name, number, b"%d" % number, staged))

    def submit_publication(self, name: str) -> Future[int]:
        """Have some of what is decided published without waiting; it is told how many batches."""
        future: Future[int] = Future()

        def done(job: PublishJob) -> None:
            if job.error is None:
                future.set_result(job.published)
            else:
                future.set_exception(job.error)

        self.store.writer.submit(PublishJob(name, done=done))
        return future

    def publish(self, name: str) -> list[int]:
        """Publish all that is decided; return how many batches at a time."""
        counts: list[int] = []
        while count := self.submit_publication(name).result(TIMEOUT_S):
            counts.append(count)
        return counts

    def submit_end(self, name: str, number: int, wanted: HalfOutcome, batches: int = 0) -> Future[EndJob]:
        """Have a transaction with half messages ended without waiting."""
        future: Future[EndJob] = Future()

        def done(job: EndJob) -> None:
            if job.error is None:
                future.set_result(job)
            else:
                future.set_exception(job.error)

        self.store.writer.submit(EndJob(name, number, wanted, batches, done=done))
        return future

    def end_half(self, name: str, number: int, wanted: HalfOutcome, batches: int = 0) -> HalfOutcome | None:
        """End a transaction with half messages; return the outcome that stands."""
        return self.submit_end(name, number, wanted, batches).result(TIMEOUT_S).stands

    def delay(
        self, topic: str, queue_id: int, due_ms: int, *bodies: bytes, recallable: bool = True, data: bytes = b""
    ) -> HeldKey:
        """Append a batch that is due later, and return its key."""
        delay = Delay(due_ms=due_ms, recallable=recallable)
        due = self.submit(topic, queue_id, data or make_batch(bodies), hold=delay).result(TIMEOUT_S).held
        assert due is not None
        return due

    def submit_due(self) -> Future[DueJob]:
        """Have some delayed batches that are due published without waiting."""
        future: Future[DueJob] = Future()
        self.store.writer.submit(DueJob(done=lambda job: _answer(job, future)))
        return future

    def publish_due(self) -> list[DueJob]:
        """Publish all delayed batches that are due; return the jobs."""
        jobs = [self.submit_due().result(TIMEOUT_S)]
        while jobs[-1].has_more:
            jobs.append(self.submit_due().result(TIMEOUT_S))
        return jobs

    def submit_recall(self, topic: str, *keys: HeldKey) -> Future[RecallJob]:
        """Recall delayed batches without waiting."""
        future: Future[RecallJob] = Future()
        self.store.writer.submit(RecallJob(topic, keys, done=lambda job: _answer(job, future)))
        return future

    def recall(self, topic: str, *keys: HeldKey) -> list[RecallOutcome]:
        """Recall delayed batches."""
        return self.submit_recall(topic, *keys).result(TIMEOUT_S).outcomes


Made = TypeVar("Made", DueJob, RecallJob)


def _answer(job: Made, future: Future[Made]) -> None:
    if job.error is None:
        future.set_result(job)
    else:
        future.set_exception(job.error)


class Stores(kernel_stores.Stores):
    """Opens stores with the jobs of features."""

    kind = OpenStore

    def open(
        self, name: str = "data", *, alone: bool = True, grown: Callable[[], None] | None = None, **options: Any
    ) -> OpenStore:
        opened = super().open(name, alone=alone, grown=grown, **options)
        assert isinstance(opened, OpenStore)
        return opened
