"""The takes of one group from one topic: serves waiting takes in order, from the queues that may have messages."""

from __future__ import annotations

import asyncio
import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import lmdb

from minimq_broker.calls.engine import Engine
from minimq_broker.features.work_queues.clock import PopClock
from minimq_broker.features.work_queues.pop_answers import DeliveredRuns, PopAnswers
from minimq_broker.features.work_queues.pop_runs import NEVER, GroupRange, PopKey, Take
from minimq_broker.features.work_queues.table import NAME
from minimq_broker.features.work_queues.uncommitted_pops import AS_WRITTEN, PopJob, PopStep
from minimq_broker.features.work_queues.work_queue_members import WorkQueueMembers
from minimq_broker.log.lmdb_file import unreadable
from minimq_broker.log.rows import ReadLimits
from minimq_broker.state.facts import Topic
from minimq_broker.state.state import QueueKey
from minimq_common.batch.header import read_group_hash
from minimq_common.errors import MinimqError, SystemBusy, TopicNotFound
from minimq_common.model import Permission
from minimq_common.security.caller import current_caller
from minimq_proto.v1 import work_queues_pb2

#: A client keeps taking from the queue whose batch it has, so that each batch is sent to few clients. To be fair to the
#: other queues, after this many messages and seconds a take goes to the least recently served queue.
_TURN = 1_000
_TURN_S = 0.1
#: Delay before another check of a queue whose messages could not be delivered.
_RECHECK_MS = 20
#: Maximum batches that one search for wanted tags skips.
_STEP_ROWS = 250


@dataclass(slots=True, eq=False)
class WaitingTake:
    id: int
    #: The consumer; "" if the messages are not released when it disconnects.
    client: str
    most: int
    max_bytes: int
    invisible_ms: int
    until: float
    have: frozenset[int]
    tags: frozenset[int]
    ahead: bool
    #: When it was received, by the `PopClock`.
    asked_ms: int
    answers: PopAnswers
    #: Tag of the user.
    user: int
    timer: asyncio.TimerHandle | None = field(default=None, init=False)

    @classmethod
    def of(
        cls, take: work_queues_pb2.PopTake, client_id: str, tags: frozenset[int], answers: PopAnswers, asked_ms: int
    ) -> WaitingTake:
        return cls(
            take.id,
            "" if take.unbound else client_id,
            take.max_messages,
            take.max_bytes,
            take.invisible_ms,
            asyncio.get_running_loop().time() + take.wait_ms / 1000,
            frozenset(take.have),
            tags,
            take.ahead,
            asked_ms,
            answers,
            current_caller().tag,
        )


class PendingReceives:
    """The takes of one group from one topic. Its cost does not depend on the number of queues."""

    def __init__(
        self,
        engine: Engine,
        members: WorkQueueMembers,
        group: str,
        topic: Topic,
        clock: PopClock,
        may_begin: Callable[[], bool],
        submit: Callable[[Sequence[AskedTake]], None],
    ) -> None:
        self._engine = engine
        self._members = members
        self._group = group
        self._topic = topic
        self._clock = clock
        self._may_begin = may_begin
        #: Decides takes in one job, then calls `taken` for each, and `serve`.
        self._submit = submit
        self._loop = asyncio.get_running_loop()
        self._waiting: OrderedDict[WaitingTake, None] = OrderedDict()
        #: Takes whose wait has expired, but which may still get messages that jobs in flight leave over.
        self._overdue: dict[WaitingTake, None] = {}
        #: Queues that may have messages, in the order of service. Others have none until their time in `_due`, in ms.
        self._ready: OrderedDict[int, None] = OrderedDict.fromkeys(range(topic.queues))
        self._due: dict[int, int] = {}
        self._earliest_ms: float = math.inf
        self._timer: asyncio.TimerHandle | None = None
        #: By queue, how many messages its takes in flight asked for. Each asks for one or more, so 0 means no take.
        self._asked: Counter[int] = Counter()
        #: Settles in flight that return messages.
        self._returning = 0
        #: The queue that each stream took from last.
        self._preferred: WeakKeyDictionary[PopAnswers, int] = WeakKeyDictionary()
        self._turn = _TURN
        self._turn_until = 0.0
        self._is_over = False
        self._group_hashes = MessageGroupIndex(engine)

    @property
    def topic(self) -> Topic:
        return self._topic

    # ---- events --------------------------------------------------------------------------------------

    def take(self, take: WaitingTake) -> PopStep | None:
        """Return the step with which a take requests messages; None if the take waits, or is answered already."""
        if take.ahead and self._topic.fifo:  # the outcome of older messages could invalidate those taken ahead
            take.answers.add(work_queues_pb2.PopResult(id=take.id))
            return None
        if not self._waiting and (queue_id := self._next(take.answers)) is not None:
            return self._step(take, queue_id)
        self._wait(take)
        if take in self._overdue:
            self.serve()
        else:
            self._arm()
        return None

    def cancel(self, take: WaitingTake) -> None:
        """Answer a waiting take at once, without messages."""
        if take in self._waiting:
            self._leave(take)
            take.answers.add(work_queues_pb2.PopResult(id=take.id))

    def taken(self, take: WaitingTake, step: PopStep, job: PopJob) -> None:
        """Process the result of a take: answer it, or let it wait again until `serve`."""
        queue_id = step.key.queue_id
        self._asked[queue_id] -= take.most
        self._ready[queue_id] = None
        error = job.error or step.error
        if error is not None:
            take.answers.fail(take.id, error)
        elif step.runs:
            has_more = not self._topic.fifo and self._has(queue_id)
            take.answers.add(
                DeliveredRuns(take.id, take.max_bytes, take.have, step.key, step.runs, job.epoch, has_more)
            )
        elif step.makes_room or step.must_ask_again:
            popped = work_queues_pb2.PoppedMessages(makes_room=step.makes_room, has_more=step.must_ask_again)
            take.answers.add(work_queues_pb2.PopResult(id=take.id, popped=popped))
        elif self._is_over or take.answers.is_closed or take.ahead:
            take.answers.add(work_queues_pb2.PopResult(id=take.id))
        else:  # another take was faster, or all new messages wait for older ones of their message groups
            if not step.passed_over and self._has(queue_id):
                self._rest(queue_id, self._clock.now_ms() + _RECHECK_MS)
            self._wait(take)
            self._waiting.move_to_end(take, last=False)

    def wake(self, queue_id: int) -> None:
        """Note that a queue may have messages."""
        if queue_id not in self._ready and queue_id >= self._topic.queues:  # the topic has more queues now
            topic = self._engine.store.state.topics.get(self._topic.name)
            if topic is None or topic.topic_id != self._topic.topic_id or queue_id >= topic.queues:
                return
            self._topic = topic
        self._ready[queue_id] = None
        if self._waiting:
            self.serve()

    def join(self, queue_id: int) -> None:
        """Note that a batch for a queue was submitted: the next waiting take joins its commit."""
        take = next(iter(self._waiting), None)
        may_join = take is not None and not take.tags and take not in self._overdue and not self._topic.fifo
        if take is not None and may_join and queue_id < self._topic.queues:
            with suppress(MinimqError, lmdb.Error, struct.error):  # the take still waits, and is served later
                step = self._step(take, queue_id)
                step.stored = step.stored[0], AS_WRITTEN
                self._leave(take)
                self._submit([(self, take, step)])

    def returning(self) -> None:
        """Note that a settle is returning messages: no take is answered with nothing until it is done."""
        self._returning += 1

    def returned(self, queue_id: int) -> None:
        self._returning -= 1
        self._ready[queue_id] = None
        self.serve()

    def look_again(self) -> None:
        """Handle a possible change of the topic. Raises the error if there is no queue left to take from."""
        state = self._engine.store.state
        topic = state.topic(self._topic.name)
        state.check_allowed(topic, Permission.READ)
        if topic.topic_id != self._topic.topic_id:
            raise TopicNotFound(f"topic {topic.name!r} was deleted and created again: retry")
        if (self._group, topic.topic_id) not in state.started:
            raise SystemBusy(f"group {self._group!r} was deleted, and starts over")
        self._topic = topic
        self._ready.update(dict.fromkeys(range(topic.queues)))
        self.serve()

    def end(self, error: MinimqError | None) -> None:
        """Answer all takes with an error or without messages, also those that would wait again later."""
        self._is_over = True
        for take in [*self._waiting]:
            self._leave(take)
            if error is None:
                take.answers.add(work_queues_pb2.PopResult(id=take.id))
            else:
                take.answers.fail(take.id, error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- serving -------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Decide all waiting takes for which there may be messages, in one job."""
        if self._is_over:
            return
        asked = list[AskedTake]()
        while self._waiting:
            take = next(iter(self._waiting))
            if (queue_id := self._next(take.answers)) is None:
                break
            self._leave(take)
            try:
                asked.append((self, take, self._step(take, queue_id)))
            except (MinimqError, lmdb.Error, struct.error) as error:
                take.answers.fail(take.id, unreadable(error) or error)
        self._submit(asked)
        if self._overdue and not self._returning and not any(self._asked.values()):
            for take in [*self._overdue]:
                self._leave(take)
                take.answers.add(work_queues_pb2.PopResult(id=take.id))
        self._arm()

    def _wait(self, take: WaitingTake) -> None:
        self._waiting[take] = None
        if take.until <= self._loop.time():
            self._overdue[take] = None
        else:
            take.timer = self._loop.call_at(take.until, self._expire, take)

    def _leave(self, take: WaitingTake) -> None:
        del self._waiting[take]
        self._overdue.pop(take, None)
        if take.timer is not None:
            take.timer.cancel()
            take.timer = None

    def _expire(self, take: WaitingTake) -> None:
        take.timer = None
        if take in self._waiting:
            self._overdue[take] = None
            self.serve()

    def _step(self, take: WaitingTake, queue_id: int) -> PopStep:
        queue = QueueKey(self._topic.topic_id, queue_id)
        key = PopKey(self._group, *queue)
        stored = self._engine.store.bounds(queue)
        unwanted, group_hashes = (0, 0), None
        if take.tags or self._topic.fifo:
            popped = self._engine.store.state.tables[NAME].queues.get(key)
            first = max(stored[0], self._engine.store.state.committed.get(key, 0) if popped is None else popped.next)
            unwanted = self._unwanted(queue, take.tags, first) if take.tags else (0, 0)
            group_hashes = self._group_hashes.of(queue, first, stored[1]) if self._topic.fifo else None
        until_ms = self._clock.after_ms(take.invisible_ms)
        self._asked[queue_id] += take.most
        self._turn -= take.most
        present = self._members.present(self._group)
        wanted = Take(
            take.client,
            take.most,
            until_ms,
            unwanted,
            not self._may_begin(),
            take.ahead,
            group_hashes,
            present,
            take.asked_ms,
            take.user,
        )
        return PopStep(take.id, key, wanted, stored)

    def _unwanted(self, queue: QueueKey, tags: frozenset[int], at: int) -> tuple[int, int]:
        with suppress(MinimqError, lmdb.Error, struct.error):  # reading the delivered messages reports the damage
            batches, behind = self._engine.store.search(queue, at, ReadLimits(1, 1, tags, _STEP_ROWS))
            return at, max(at, batches[0].base_offset if batches else behind)
        return 0, 0

    # ---- the next queue ------------------------------------------------------------------------------

    def _next(self, answers: PopAnswers) -> int | None:
        now = self._clock.now_ms()
        if self._earliest_ms <= now:
            self._wake_due(now)
        ready = self._ready
        if self._turn > 0 or self._loop.time() < self._turn_until:
            near = self._preferred.get(answers, -1)
            if near in ready and near < self._topic.queues and self._has(near):
                return near
        else:
            self._turn, self._turn_until = _TURN, self._loop.time() + _TURN_S
        while ready:
            queue_id = next(iter(ready))
            if queue_id < self._topic.queues and self._has(queue_id):
                ready.move_to_end(queue_id)
                self._preferred[answers] = queue_id
                return queue_id
            del ready[queue_id]  # takes in flight and arriving batches add it again
            popped = self._engine.store.state.tables[NAME].queues.get((self._group, self._topic.topic_id, queue_id))
            if popped is not None and popped.due_ms > now and not self._asked[queue_id]:
                self._rest(queue_id, popped.due_ms)
        return None

    def _has(self, queue_id: int) -> bool:
        engine, queue = self._engine, QueueKey(self._topic.topic_id, queue_id)
        state, end = engine.store.state, engine.store.queue_end(queue).offset
        popped = state.tables[NAME].queues.get((self._group, *queue))
        if popped is None:
            return end - self._asked[queue_id] > state.committed.get((self._group, *queue), 0)
        if popped.due_ms <= self._clock.now_ms():
            return not self._asked[queue_id]
        return end - self._asked[queue_id] > popped.next and popped.takes_new and self._may_begin()

    def _rest(self, queue_id: int, due_ms: int) -> None:
        self._ready.pop(queue_id, None)
        if due_ms == NEVER:
            return
        self._due[queue_id] = min(due_ms, self._due.get(queue_id, due_ms))
        self._earliest_ms = min(self._earliest_ms, due_ms)

    def _wake_due(self, now_ms: int) -> None:
        for queue_id, due_ms in [*self._due.items()]:
            if due_ms <= now_ms:
                del self._due[queue_id]
                self._ready[queue_id] = None
        self._earliest_ms = min(self._due.values(), default=math.inf)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and self._earliest_ms < math.inf:
            wait_s = max(0.0, (self._earliest_ms - self._clock.now_ms() + 1) / 1000)
            self._timer = self._loop.call_later(min(wait_s, 3600.0), self.serve)


#: A take, its line, and the step with which it requests messages.
AskedTake = tuple[PendingReceives, WaitingTake, PopStep]

#: Maximum batches and bytes of one lookup. There is one whenever fewer than `_LOOKUP_BATCHES` stretches are known.
_LOOKUP_BATCHES = 256
_LOOKUP_BYTES = 1 << 20
#: Maximum queues whose message groups are cached.
_MAX_QUEUES = 100


class MessageGroupIndex:
    """Looks up the message groups of the next batches of queues, reading each batch once, many at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[QueueKey, tuple[GroupRange, ...]] = {}

    def of(self, queue: QueueKey, first: int, end: int) -> tuple[GroupRange, ...]:
        """Return the message groups from offset `first` on, without a gap; empty at the end of the queue."""
        known = self._known.get(queue, ())
        if known and known[0].first <= first <= known[-1].end:
            known = tuple(part for part in known if part.end > first)
        else:
            known = ()
        at = known[-1].end if known else first
        if len(known) < _LOOKUP_BATCHES and at < end:
            known += self._looked_up(queue, at, end)
        if len(self._known) >= _MAX_QUEUES:
            self._known.clear()
        self._known[queue] = known
        return known

    def _looked_up(self, queue: QueueKey, at: int, end: int) -> tuple[GroupRange, ...]:
        store = self._engine.store
        found: list[GroupRange] = []
        try:
            batches, _ = store.search(queue, at, ReadLimits(end - at, _LOOKUP_BYTES, max_rows=_LOOKUP_BATCHES))
            group_hashes = [
                (batch.base_offset, batch.base_offset + batch.count, read_group_hash(batch.data)) for batch in batches
            ]
        except (MinimqError, lmdb.Error, struct.error):  # reading the delivered messages reports the damage
            group_hashes = []
        for first, behind, group_hash in group_hashes or [(at, self._behind(queue, at, end), 0)]:
            if first > at:
                found.append(GroupRange(at, first, 0))  # lost messages, which their consumer gets reported
                at = first
            if found and group_hash == found[-1].group_hash:
                found[-1] = GroupRange(found[-1].first, behind, group_hash)
            else:
                found.append(GroupRange(at, behind, group_hash))
            at = behind
        return tuple(found)

    def _behind(self, queue: QueueKey, at: int, end: int) -> int:
        try:
            row = self._engine.store.log.row_at(queue, at)
        except (MinimqError, lmdb.Error, struct.error):
            row = None
        if row is None:
            return at + 1
        return min(end, row.base_offset if row.base_offset > at else row.last_offset + 1)
