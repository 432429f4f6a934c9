"""Settles in atomic appends: messages of work queues, and dead letters that are sent again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minimq_broker.calls.engine import Engine
from minimq_broker.commit.jobs import Progress
from minimq_broker.features.work_queues.clock import PopClock
from minimq_broker.features.work_queues.pop_runs import PopKey, Resolve
from minimq_broker.features.work_queues.table import NAME
from minimq_broker.features.work_queues.uncommitted_pops import PopJob, PopStep, UncommittedPops
from minimq_broker.features.work_queues.work_queue_clients import settle_step, spans_of
from minimq_broker.state.facts import Fact
from minimq_common.errors import InvalidArgument
from minimq_common.names import check_group, dead_letter_topic
from minimq_common.wire.protocol_bounds import MAX_TAKEN
from minimq_proto.v1 import broker_pb2

if TYPE_CHECKING:
    from minimq_broker.commit.commit_group import CommitGroup


@dataclass(slots=True, eq=False)
class Settled(Progress):
    """The settles of an atomic append."""

    job: PopJob
    #: A repeated settle fails, too.
    strict: bool
    wake_after: Callable[[PopStep], None]

    feature = NAME
    fresh = True

    @property
    def size(self) -> int:
        return self.job.size

    def decide(self, group: CommitGroup) -> Sequence[Fact]:
        pops: UncommittedPops = group.scratch(NAME)
        return pops.decide_all_or_none(self.job.steps, strict=self.strict)

    def done(self) -> None:
        for step in self.job.steps:
            self.wake_after(step)


def settles_of(engine: Engine, progress: broker_pb2.AtomicProgress, clock: PopClock) -> PopJob:
    """Return the settles of an atomic append. Raises the reason if they are rejected."""
    group, spans = check_group(progress.group), sum(len(settle.spans) // 2 for settle in progress.settles)
    if spans > MAX_TAKEN:
        raise InvalidArgument(f"the transaction settles {spans:,} spans of messages, the limit is {MAX_TAKEN:,}")
    if progress.settles[0].outcome == broker_pb2.POP_OUTCOME_RESOLVE:
        steps = [_letter_step(engine, group, progress.settles)]
    elif any(settle.outcome != broker_pb2.POP_OUTCOME_DONE for settle in progress.settles):
        raise InvalidArgument("an atomic append settles messages as done only")
    else:
        steps = [settle_step(engine.store.state, group, settle, clock) for settle in progress.settles]
    return PopJob(group, steps, clock.now_ms())


def _letter_step(engine: Engine, group: str, settles: Sequence[broker_pb2.PopSettle]) -> PopStep:
    settle = settles[0]
    if len(settles) > 1 or settle.topic != dead_letter_topic(group):
        raise InvalidArgument("an atomic append settles dead letters of one queue of the group, and nothing else")
    queue = engine.store.state.queue(settle.topic, settle.queue_id)
    stored = engine.store.bounds(queue)
    return PopStep(settle.id, PopKey(settle.topic, *queue), Resolve(spans_of(settle), stored[1]), stored)
