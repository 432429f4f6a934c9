"""Jobs for popped queues, and their decisions within one commit group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from minimq_broker.commit.jobs import Job
from minimq_broker.features.feature import Group, OffsetKey, Scratch
from minimq_broker.features.work_queues.pop_queue import PopQueue
from minimq_broker.features.work_queues.pop_runs import (
    Leave,
    PopKey,
    PopMoved,
    QueueMoved,
    Resolve,
    Run,
    RunState,
    Settle,
    Take,
    epoch_of_user,
    handle_epoch,
)
from minimq_broker.features.work_queues.table import NAME
from minimq_broker.state.state import QueueKey, State
from minimq_common.errors import Fenced, MinimqError, TopicNotFound

if TYPE_CHECKING:
    from minimq_broker.commit.commit_group import CommitGroup

#: Stands for the end of a queue after the batches of the same commit group.
AS_WRITTEN = -1
_WITH_SPANS = (Settle, Resolve)


@dataclass(slots=True, eq=False)
class PopStep:
    id: int
    key: PopKey
    what: Take | Settle | Leave | Resolve
    #: First offset, and the end of the queue for readers. `AS_WRITTEN` includes the batches of the same commit: they
    #: and the delivery are on disk together or not at all.
    stored: tuple[int, int] = (0, 0)
    #: Why it was rejected. Does not affect other steps.
    error: MinimqError | None = field(default=None, init=False)
    #: The delivered messages.
    runs: list[Run] = field(default_factory=list, init=False)
    #: Messages of a late settle that were already redelivered.
    expired: list[tuple[int, int]] = field(default_factory=list, init=False)
    #: Number of messages that were deleted unsettled.
    missed: int = field(default=0, init=False)
    #: The consumer must settle its messages before it gets more.
    makes_room: bool = field(default=False, init=False)
    #: The take skipped new messages.
    passed_over: bool = field(default=False, init=False)
    #: The consumer must repeat the take, to show that it is alive.
    must_ask_again: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False)
class PopJob(Job):
    """The steps of one request, in order. Recorded by one fact per group."""

    group: str
    steps: Sequence[PopStep]
    #: Time of the decision, in ms since 1970.
    now_ms: int
    #: Of its deliveries, as consumers see it; their runs have `epoch_of_user`.
    epoch: int = field(default=0, init=False)

    fresh = True

    @property
    def size(self) -> int:
        size = 256 * len(self.steps)
        for step in self.steps:
            if isinstance(step.what, _WITH_SPANS):
                size += 100 * len(step.what.spans)
        return size

    def decide(self, group: CommitGroup) -> None:
        """Record the changes. A rejected step has its `error` set."""
        pops: UncommittedPops = group.scratch(NAME)
        moved = pops.decide(self)
        if moved is not None:
            group.add(moved)


class UncommittedQueue:
    """A popped queue as it will be after a commit. The queue is changed only if a later decision depends on that."""

    def __init__(self, queue: PopQueue, tried: list[PopQueue]) -> None:
        self._queue = queue
        self._tried = tried
        #: New states of messages, in order. The first `_tried_runs` are in the queue, the first `_recorded` in a fact.
        self.runs: list[Run] = []
        self._tried_runs = self._recorded = 0
        self._done = 0

    @property
    def queue(self) -> PopQueue:
        """The queue with all changes so far; read-only."""
        if self._tried_runs < len(self.runs):
            self._begin()
            for run in self.runs[self._tried_runs :]:
                self._queue.put(run)
            self._tried_runs = len(self.runs)
            self._queue.refresh()
        return self._queue

    def _begin(self) -> None:
        self._queue.begin()
        self._tried.append(self._queue)

    def drop_before(self, first: int) -> int:
        """Drop deleted messages; return how many of them were not settled."""
        queue = self.queue
        if first <= queue.done:
            return 0
        missed = queue.unsettled_before(first)
        self._begin()
        queue.drop_before(first)
        queue.refresh()
        self._done = first
        # `State.apply` drops first, then puts the runs: these must not contain dropped messages.
        runs = self.runs[self._recorded :]
        self.runs[self._recorded :] = [run.part(max(run.first, first), run.end) for run in runs if run.end > first]
        self._tried_runs = len(self.runs)
        return missed

    def changes(self, key: PopKey) -> QueueMoved | None:
        """Return the changes since the previous call; None if there are none."""
        runs, done = self.runs[self._recorded :], self._done
        if not runs and not done:
            return None
        self._recorded, self._done = len(self.runs), 0
        return QueueMoved(key.topic_id, key.queue_id, tuple(runs), done)


class UncommittedPops(Scratch):
    """The popped queues that one commit group changes, as they will be after the commit."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._state: State = group.state
        self._popped: dict[OffsetKey, PopQueue] = self._state.tables[NAME].queues
        self._drafts: dict[PopKey, UncommittedQueue] = {}
        #: Queues with changes, until applying the facts makes them.
        self._tried: list[PopQueue] = []

    def end(self) -> None:
        for queue in self._tried:
            queue.end()

    def decide(self, job: PopJob) -> PopMoved | None:
        """Return the fact that results from a job, None if nothing changes. A rejected step has its `error` set."""
        touched: dict[PopKey, UncommittedQueue] = {}
        for step in job.steps:
            try:
                self._decide(step, job, touched)
            except MinimqError as error:
                step.error = error
        moved = []
        for key, draft in touched.items():  # a comprehension is one call more
            if (changes := draft.changes(key)) is not None:
                moved.append(changes)
        return PopMoved(job.group, tuple(moved)) if moved else None

    def _decide(self, step: PopStep, job: PopJob, touched: dict[PopKey, UncommittedQueue]) -> None:
        key, what = step.key, step.what
        draft = self._draft(key) or self._begun(key, what)
        if draft is None:  # the group was reset or deleted
            step.expired = [*what.spans] if isinstance(what, Settle) else []
            return
        touched[key] = draft
        if step.stored[0]:
            step.missed = draft.drop_before(step.stored[0])
        match what:
            case Take():
                self._take(step, what, job, draft)
            case Settle():
                settled, step.expired = draft.queue.settle(what)
                draft.runs += settled
            case Leave():
                step.runs = draft.queue.freed(what)
                draft.runs += step.runs

    def decide_all_or_none(self, steps: Sequence[PopStep], *, strict: bool) -> list[PopMoved]:
        """Return the facts of settles, one per group, or raise if one fails. `strict`: a repeated settle fails, too."""
        changes: list[tuple[UncommittedQueue, list[Run]]] = []
        for step in steps:
            draft = self._draft(step.key) or self._begun(step.key, step.what)
            if draft is None:
                raise _not_held(step)
            if step.stored[0]:
                draft.drop_before(step.stored[0])
            changes.append((draft, _settled(draft.queue, step, strict=strict)))
        for draft, runs in changes:
            draft.runs += runs
        moved: dict[str, list[QueueMoved]] = {}
        for step in steps:
            if (changed := self._drafts[step.key].changes(step.key)) is not None:
                moved.setdefault(step.key.group, []).append(changed)
        return [*map(PopMoved, moved, map(tuple, moved.values()))]

    def _begun(self, key: PopKey, what: Take | Settle | Leave | Resolve) -> UncommittedQueue | None:
        if self._state.topic_name(key.topic_id) is None:
            raise TopicNotFound("the topic was deleted while its messages were received: retry")
        if not isinstance(what, Take | Resolve):
            return None
        draft = self._drafts[key] = UncommittedQueue(PopQueue(self._state.committed.get(key, 0)), self._tried)
        return draft

    def _take(self, step: PopStep, take: Take, job: PopJob, draft: UncommittedQueue) -> None:
        queues, now_ms = self._queues(step.key.group), job.now_ms
        for queue in queues:
            if now_ms >= queue.due_ms and queue.has_expired_since(take.asked_ms, now_ms):
                step.must_ask_again = True  # this consumer may hang too, or be the one that held them
                return
            if queue.lost and queue.is_with(take.client, now_ms, lost_only=True):
                step.makes_room = True
                return
        job.epoch = job.epoch or handle_epoch(self._state.term, self._group.end)
        epoch = epoch_of_user(job.epoch, take.user)
        runs = draft.queue.take(take, now_ms, self._readable_end(step), epoch)
        out = [run for run in runs if run.state is RunState.OUT]
        # A message that may have killed its consumer is delivered to one that has no other messages.
        if any(run.lost for run in out):
            step.makes_room = any(queue.is_with(take.client, now_ms, lost_only=False) for queue in queues)
        if not step.makes_room:
            draft.runs += runs
            step.runs = out
            step.passed_over = len(runs) > len(out)

    def _queues(self, group: str) -> list[PopQueue]:
        found = list[PopQueue]()
        for topic_id, queue_id in self._state.index.queues(group):
            key = PopKey(group, topic_id, queue_id)
            if (draft := self._drafts.get(key)) is not None:
                found.append(draft.queue)
            elif (queue := self._popped.get(key)) is not None:
                found.append(queue)
        return found

    def _readable_end(self, step: PopStep) -> int:
        if step.stored[1] != AS_WRITTEN:
            return step.stored[1]
        queue = QueueKey(step.key.topic_id, step.key.queue_id)
        return self._group.queue_end(queue).offset

    def _draft(self, key: PopKey) -> UncommittedQueue | None:
        draft = self._drafts.get(key)
        if draft is None and (queue := self._popped.get(key)) is not None:
            draft = self._drafts[key] = UncommittedQueue(queue, self._tried)
        return draft


def _settled(queue: PopQueue, step: PopStep, *, strict: bool) -> list[Run]:
    match step.what:
        case Resolve() as resolve:
            return queue.resolved(resolve)
        case Settle() as settle:
            runs, expired = queue.settle(settle)
            if not expired and (not strict or queue.has_all(settle)):
                return runs
    raise _not_held(step)


def _not_held(step: PopStep) -> Fenced:
    return Fenced(
        f"messages of queue {step.key.queue_id} no longer belong to this consumer of group {step.key.group!r}: "
        "their invisible duration expired, and others have got them; nothing of the transaction is stored"
    )
