"""The `Pop` call, for work queues: a request settles messages and takes others, in one job of the writer."""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from functools import partial
from typing import Any

import grpc.aio
import lmdb

from minimq_broker.calls.engine import Engine
from minimq_broker.commit.jobs import AppendJob
from minimq_broker.features.work_queues.clock import PopClock
from minimq_broker.features.work_queues.pending_receives import AskedTake, PendingReceives, WaitingTake
from minimq_broker.features.work_queues.pop_answers import MAX_WAITING, PopAnswers, PopReader
from minimq_broker.features.work_queues.pop_runs import Leave, PopKey, PopOutcome, Settle
from minimq_broker.features.work_queues.settling import Settled, settles_of
from minimq_broker.features.work_queues.table import popped_queues
from minimq_broker.features.work_queues.uncommitted_pops import PopJob, PopStep
from minimq_broker.features.work_queues.work_queue_clients import (
    PopClientStream,
    WorkQueueClients,
    WorkQueueMember,
    settle_step,
)
from minimq_broker.groups.client_runs import fenced
from minimq_broker.groups.offsets import InitialOffset, InitialOffsets
from minimq_broker.log.clock import now_ms
from minimq_broker.log.lmdb_file import unreadable
from minimq_broker.state.state import QueueKey
from minimq_common.errors import InvalidArgument, MinimqError, SystemBusy
from minimq_common.model import Permission
from minimq_common.names import DEAD_LETTER_PREFIX, check_client_id, check_group
from minimq_common.security.caller import ANY_CALLER, current_caller
from minimq_common.wire.bound_check import check_bounds
from minimq_proto.v1 import broker_pb2, work_queues_pb2

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[work_queues_pb2.PopRequest, work_queues_pb2.PopResponse]

#: Maximum pending takes and settles of one stream, and settled spans that wait for the disk. Limits the memory that
#: clients can use.
MAX_PENDING_STEPS = 4_096
MAX_PENDING_SPANS = 50_000
#: Maximum bitmaps of all popped queues, about 300 bytes each. Beyond this, messages are only redelivered.
MAX_BITMAPS_IN_ALL = 1 << 20
#: Interval at which bitmaps are counted.
_COUNT_INTERVAL_S = 1.0
#: Outcomes after which other consumers may get the messages.
_LEAVING = (PopOutcome.FREE, PopOutcome.RETURN)


class WorkQueueService:
    """The `Pop` call of the broker during one role."""

    def __init__(self, engine: Engine, starts: InitialOffsets, grace_s: float, missed: Counter[str]) -> None:
        self._engine, self._missed = engine, missed
        self._starts = starts
        self._grace_s = grace_s
        self._clients = WorkQueueClients(engine)
        self._members = self._clients.members
        self._streams: set[PopClientStream] = set()
        self.clock = PopClock(engine.store.newest_ms() or 0)
        self._reader = PopReader(
            engine, self.clock, lambda key, settle: self._submit_settles(key.group, [PopStep(0, key, settle)])
        )
        #: By topic id, then group.
        self._lines: dict[int, dict[str, PendingReceives]] = {}
        self._pending_spans = 0
        self._counted_at = -_COUNT_INTERVAL_S
        self._is_full = False
        self._is_retired = False
        #: By queue that delivers no new messages: its oldest unsettled one, behind which too many wait.
        self.blocked: dict[PopKey, int] = {}
        expected = self._clients.expect_holders(self.clock.now_ms())
        asyncio.get_running_loop().call_later(grace_s, self._clients.end_claims, expected)

    def retire(self) -> None:
        """Stop serving: another role has begun."""
        self._is_retired = True
        self._listen(False)
        for lines in self._lines.values():
            for line in lines.values():
                line.end(None)
        self._lines.clear()

    def _listen(self, wanted: bool) -> None:
        # Listens for batches only while there are lines, because most brokers serve no work queues.
        arrivals, writes = self._engine.arrivals, self._engine.writes
        if wanted and self._arrived not in arrivals.listeners:
            arrivals.listeners.append(self._arrived)
            writes.listeners.append(self._arriving)
        elif not wanted and self._arrived in arrivals.listeners:
            arrivals.listeners.remove(self._arrived)
            writes.listeners.remove(self._arriving)

    # ---- streams -----------------------------------------------------------------------------------

    async def serve(self, requests: AsyncIterator[work_queues_pb2.PopRequest], context: Context) -> None:
        """Serve takes and settles until the client closes its side and all are answered."""
        engine = self._engine
        caller = current_caller()
        answers = PopAnswers(context, self._reader, engine.writes.soon, engine.unsent)
        stream = PopClientStream(answers, caller)
        self._streams.add(stream)
        try:
            await engine.streams.serve(self._receive(requests, context, stream), "pop-receiver", answers)
        finally:
            self._streams.discard(stream)
            for client in stream.clients:
                self._members.parted(*client)
                died = client not in stream.leaving
                grace_s = self._grace_s if died else 0.0
                asyncio.get_running_loop().call_later(grace_s, self._gone, *client, died)

    async def _receive(
        self, requests: AsyncIterator[work_queues_pb2.PopRequest], context: Any, stream: PopClientStream
    ) -> None:
        read, answers = context.read, stream.answers
        try:
            request: Any = await anext(requests, grpc.aio.EOF)  # has a deadline; `context.read` below has none
            while request is not grpc.aio.EOF:
                self._check_owner(request, stream)
                answers.expected += max(1, len(request.settles) + len(request.takes))
                if (beginning := self._accept(request, stream)) is not None:
                    await beginning
                if answers.expected >= MAX_WAITING:
                    await answers.fewer(MAX_WAITING)
                request = await read()
        finally:
            for cancel in [*answers.cancels.values()]:
                cancel()

    def _accept(
        self, request: work_queues_pb2.PopRequest, stream: PopClientStream
    ) -> Coroutine[None, None, None] | None:
        try:
            self._check(request, stream)
            popper = WorkQueueMember(request.group, request.client_id, stream, request.run)
            client = popper.group, popper.client_id
            if client not in stream.clients:
                self._enter(popper, request)
            if request.leaves and client in stream.clients:
                stream.leaving.add(client)
            for number in request.cancels:
                if (cancel := stream.answers.cancels.get(number)) is not None:
                    cancel()
            if not (request.settles or request.takes):
                stream.answers.expected -= 1  # such a request gets no answer, unless it was rejected above
            steps = self._settles(popper.group, request, stream)
            if not request.takes:
                self._hand_in(popper.group, steps, (), self._returning(steps), stream.answers)
            elif beginnings := self._undecided(popper.group, request):
                self._hand_in(popper.group, steps, (), self._returning(steps), stream.answers)
                return self._begin(popper, request, beginnings)
            else:
                self._take(popper, request.takes, steps)
        except Exception as error:  # noqa: BLE001 - the client must get any error
            self._reject(request, error, stream)
        return None

    def _check_owner(self, request: work_queues_pb2.PopRequest, stream: PopClientStream) -> None:
        # Ends the streams of a former consumer with this id, or raises what ends this one.
        client = group, client_id = request.group, request.client_id
        if client in stream.clients or not self._members.check_owner(group, client_id, stream.caller.user, request.run):
            return
        if request.takes or request.cancels:  # not by handles alone
            for other in [each for each in self._streams if client in each.clients]:
                other.answers.end(fenced(client_id))
                for cancel in [*other.answers.cancels.values()]:
                    cancel()
            log.info("pop: consumer taken over group=%s client=%s", group, client_id)
            self._free(group, Leave(client_id))

    def _check(self, request: work_queues_pb2.PopRequest, stream: PopClientStream) -> None:
        asked = len(request.settles) + len(request.takes)  # cancellations do not count, because they make room
        if asked and stream.answers.expected > MAX_PENDING_STEPS + asked:
            text = f"more than {MAX_PENDING_STEPS} takes and settles are under way on one stream"
            raise SystemBusy(text, limit="pops")
        check_bounds(request)
        if stream.caller is not ANY_CALLER:
            stream.caller.check(request)
        if not (asked or request.cancels or request.leaves):
            raise InvalidArgument("a request has to take messages, settle some or cancel takes")
        if request.takes:
            self._engine.writes.check()

    def _enter(self, popper: WorkQueueMember, request: work_queues_pb2.PopRequest) -> None:
        group, client_id = check_group(popper.group), check_client_id(popper.client_id)
        is_same = not self._members.check_owner(group, client_id, popper.stream.caller.user, popper.run)
        is_back = is_same and request.settles and self._members.has(group, client_id)  # in its grace period
        if is_back or (request.cancels and not (request.settles or request.takes)):
            self._clients.enter(popper)
        elif request.takes and self._members.is_offline(group, client_id):  # a new process replaces one that died
            self._free(group, Leave(client_id))

    def _reject(self, request: work_queues_pb2.PopRequest, error: Exception, stream: PopClientStream) -> None:
        self._note(error, request.group)
        numbers = [*(settle.id for settle in request.settles), *(take.id for take in request.takes)] or [0]
        for number in numbers:
            stream.answers.fail(max(0, number), error)

    def _note(self, error: Exception, group: str) -> None:
        if isinstance(error, MinimqError):
            self._engine.rejections.note(error)
        else:
            log.error("pop: failed group=%s", group, exc_info=error)

    def _hand_in(
        self,
        group: str,
        settles: Sequence[PopStep],
        takes: Sequence[AskedTake],
        lines: Sequence[tuple[PendingReceives, int]],
        answers: PopAnswers | None,
    ) -> None:
        """Decide settles and takes in one job. Without `answers`, the broker itself settles."""
        steps = [*settles, *[step for _, _, step in takes]] if takes else settles
        if not steps:
            return

        def done(job: PopJob) -> None:
            for step in settles:
                self._settled(step, job, answers)
            for line, queue_id in lines:
                line.returned(queue_id)
            for line, take, step in takes:
                line.taken(take, step, job)
                if step.missed and job.error is None:
                    self._report_missed(step)
            for line in {line for line, _, _ in takes}:
                line.serve()

        job = PopJob(group, steps, self.clock.now_ms(), done=done)
        try:
            self._engine.writes.submit(job)
        except MinimqError as error:
            job.error = error
            asyncio.get_running_loop().call_soon(done, job)  # it may submit others

    # ---- takes -------------------------------------------------------------------------------------

    def _undecided(self, group: str, request: work_queues_pb2.PopRequest) -> list[work_queues_pb2.PopTake]:
        state = self._engine.store.state
        found = []
        for take in request.takes:
            topic = state.topics.get(take.topic)
            if topic is not None and (group, topic.topic_id) not in state.started:
                found.append(take)
        return found

    async def _begin(
        self, popper: WorkQueueMember, request: work_queues_pb2.PopRequest, takes: Sequence[work_queues_pb2.PopTake]
    ) -> None:
        try:
            for take in takes:
                self._clients.subscribe(popper, take)
            for take in takes:
                since_ms = now_ms() - take.begun_ago_ms if take.begun_ago_ms else None
                await self._starts.decide(popper.group, take.topic, InitialOffset(take.start, since_ms))
            self._take(popper, request.takes, ())
        except asyncio.CancelledError:  # nothing more is received: answered like takes that wait
            for take in request.takes:
                popper.stream.answers.add(work_queues_pb2.PopResult(id=take.id))
            raise
        except Exception as error:  # noqa: BLE001 - the client must get any error
            self._note(error, popper.group)
            for take in request.takes:
                popper.stream.answers.fail(take.id, error)

    def _take(
        self, popper: WorkQueueMember, takes: Sequence[work_queues_pb2.PopTake], settles: Sequence[PopStep]
    ) -> None:
        asked, answers = [], popper.stream.answers
        lines = self._returning(settles)  # first, because a take that does not wait may get the returned messages
        for take in takes:
            try:
                line, tags = self._line(popper, take)
                waiting = WaitingTake.of(take, popper.client_id, tags, answers, self.clock.now_ms())
                # Even for a take that does not wait: it may queue behind others when its client cancels it.
                answers.cancels[take.id] = partial(line.cancel, waiting)
                step = line.take(waiting)
                if step is not None:
                    asked.append((line, waiting, step))
            except (MinimqError, lmdb.Error, struct.error) as error:
                self._note(error, popper.group)
                answers.fail(take.id, unreadable(error) or error)
        self._hand_in(popper.group, settles, asked, lines, answers)

    def _line(self, popper: WorkQueueMember, take: work_queues_pb2.PopTake) -> tuple[PendingReceives, frozenset[int]]:
        state, group = self._engine.store.state, popper.group
        topic = state.topic(take.topic)
        state.check_allowed(topic, Permission.READ)
        tags = self._clients.subscribe(popper, take)
        line = self._line_of(group, topic.topic_id)
        if line is None:
            submit = partial(self._hand_in, group, (), lines=(), answers=None)
            line = PendingReceives(self._engine, self._members, group, topic, self.clock, self.may_begin, submit)
            self._lines.setdefault(topic.topic_id, {})[group] = line
            self._listen(True)
        return line, tags

    def _line_of(self, group: str, topic_id: int) -> PendingReceives | None:
        return self._lines.get(topic_id, {}).get(group)

    def may_begin(self) -> bool:
        """Return whether new messages may be delivered, because the number of bitmaps is below its limit."""
        now = time.monotonic()
        if now - self._counted_at >= _COUNT_INTERVAL_S:
            self._counted_at = now
            popped = popped_queues(self._engine.store.state).copy().items()
            # Dead letters do not count, because consumers do not settle them.
            queues = {PopKey(*key): queue for key, queue in popped if not key[0].startswith(DEAD_LETTER_PREFIX)}
            self._is_full = sum(map(len, queues.values())) >= MAX_BITMAPS_IN_ALL
            full = [key for key, queue in queues.items() if queue.is_full]
            if self._is_full and not full:
                full = [max(queues, key=lambda key: len(queues[key]))]
            self._note_blocked({key: queues[key].done for key in full})
        return not self._is_full

    def _note_blocked(self, blocked: dict[PopKey, int]) -> None:
        for key in blocked.keys() - self.blocked.keys():
            log.warning(
                "pop: delivers no new messages until the oldest unsettled one is settled, because too many wait behind "
                "it group=%s queue=%s offset=%d",
                key.group,
                self._engine.store.state.name_of(QueueKey(key.topic_id, key.queue_id)),
                blocked[key],
            )
        self.blocked = blocked

    # ---- settles -----------------------------------------------------------------------------------

    def _settles(self, group: str, request: work_queues_pb2.PopRequest, stream: PopClientStream) -> list[PopStep]:
        steps: list[PopStep] = []
        if not request.settles:
            return steps
        state = self._engine.store.state
        for settle in request.settles:
            try:
                if self._pending_spans + len(settle.spans) // 2 > MAX_PENDING_SPANS:
                    text = f"more than {MAX_PENDING_SPANS:,} spans of messages are on their way to the disk"
                    raise SystemBusy(text, limit="pop-spans")
                steps.append(settle_step(state, group, settle, self.clock))
                self._pending_spans += len(settle.spans) // 2
            except MinimqError as error:
                self._note(error, group)
                stream.answers.fail(settle.id, error)
        return steps

    def _settled(self, step: PopStep, job: PopJob, answers: PopAnswers | None) -> None:
        error = job.error or step.error
        if error is None:
            self._wake_after(step)
        if answers is None:
            if error is not None:  # the role ends; the deadline of the messages releases them
                log.info("pop: not freed before its deadline group=%s error=%s", job.group, error.message)
            return
        if isinstance(step.what, Settle):
            self._pending_spans -= len(step.what.spans)
        if error is not None:
            self._note(error, job.group)
            answers.fail(step.id, error)
        else:
            flat = [number for first, end in step.expired for number in (first, end - first)]
            answers.add(work_queues_pb2.PopResult(id=step.id, expired=flat))

    def progress_of(self, append: broker_pb2.AtomicAppend) -> Settled | None:
        if not append.progress.settles:
            return None
        job = settles_of(self._engine, append.progress, self.clock)
        return Settled(job, bool(append.batches), self._wake_after)

    def _wake_after(self, step: PopStep) -> None:
        # The settle may have released messages or made room for new ones.
        key = step.key
        if not self._is_retired and (line := self._line_of(key.group, key.topic_id)) is not None:
            line.wake(key.queue_id)

    def _returning(self, steps: Sequence[PopStep]) -> list[tuple[PendingReceives, int]]:
        found = []
        for step in steps:
            line = self._line_of(step.key.group, step.key.topic_id)
            if line is not None and (not isinstance(step.what, Settle) or step.what.outcome in _LEAVING):
                line.returning()
                found.append((line, step.key.queue_id))
        return found

    def _submit_settles(self, group: str, steps: Sequence[PopStep]) -> None:
        self._hand_in(group, steps, (), self._returning(steps), None)

    def _report_missed(self, step: PopStep) -> None:
        self._missed[step.key.group] += step.missed
        queue = self._engine.store.state.name_of(QueueKey(step.key.topic_id, step.key.queue_id))
        text = "pop: unsettled messages were deleted group=%s queue=%s count=%d"
        log.warning(text, step.key.group, queue, step.missed)

    # ---- batches that arrive, and consumers that leave ---------------------------------------------

    def _arrived(self, queue: QueueKey | None) -> None:
        if queue is not None:
            for line in [*self._lines.get(queue.topic_id, {}).values()]:
                line.wake(queue.queue_id)
            return
        every = [(topic_id, group) for topic_id, lines in self._lines.items() for group in lines]
        for topic_id, group in every:
            try:
                self._lines[topic_id][group].look_again()
            except MinimqError as error:
                self._drop_line(group, topic_id, error)

    def _arriving(self, job: AppendJob) -> None:
        topic = self._engine.store.writer.state.topics.get(job.topic)
        if topic is not None and job.hold is None:
            for line in self._lines.get(topic.topic_id, {}).values():
                line.join(job.queue_id)

    def _drop_line(self, group: str, topic_id: int, error: MinimqError | None) -> None:
        lines = self._lines[topic_id]
        line = lines.pop(group)
        if not lines:
            del self._lines[topic_id]
        if not self._lines:
            self._listen(False)
        line.end(error)

    def _gone(self, group: str, client_id: str, died: bool) -> None:
        if self._is_retired or not self._members.went(group, client_id):
            return
        self._free(group, Leave(client_id, died))
        self._clients.end_claims([(group, client_id)])
        if not self._members.has_some(group):
            for topic_id in [topic_id for topic_id, lines in self._lines.items() if group in lines]:
                self._drop_line(group, topic_id, None)

    def _free(self, group: str, gone: Leave) -> None:
        steps = []
        state = self._engine.store.writer.state
        for topic_id, queue_id in state.index.queues(group):
            if (group, topic_id, queue_id) in popped_queues(state):  # the writer knows which messages to free
                steps.append(PopStep(0, PopKey(group, topic_id, queue_id), gone))
        if steps:
            log.info("pop: consumer lost group=%s client=%s", group, gone.client)
            self._submit_settles(group, steps)
