"""Offsets: the start of groups, and committed ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from minimq_broker.calls.engine import Engine
from minimq_broker.commit.store import Store
from minimq_broker.groups.claims import LEASES
from minimq_broker.groups.leases import LeaseKey
from minimq_broker.log.clock import now_ms
from minimq_broker.state.facts import CommittedOffset, GroupStarted, OffsetsCommitted
from minimq_broker.state.state import QueueKey, State
from minimq_common.errors import Fenced, InvalidArgument, NotMaster, OffsetOutOfRange, SystemBusy
from minimq_common.names import check_group
from minimq_common.security.access_rule import Resource
from minimq_common.security.caller import current_caller
from minimq_common.serving.periodic import SLICE, slices
from minimq_proto.v1 import broker_pb2


def start_offset(store: Store, queue: QueueKey, start: broker_pb2.StartPosition) -> int:
    """Return the offset of a start position in a queue; without a position, the end. Thread-safe."""
    first, end = store.bounds(queue)
    match start.at:
        case broker_pb2.START_AT_EARLIEST:
            return first
        case broker_pb2.START_AT_TIMESTAMP:
            return store.offset_at(queue, start.timestamp_ms)
        case _:
            return end


class OffsetService:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def commit(self, request: broker_pb2.CommitOffsetsRequest) -> broker_pb2.CommitOffsetsResponse:
        """Commit offsets of a group. All of them are on disk when this returns, or none was accepted."""
        group = check_group(request.group)
        self._engine.tables.claims.check(group, LEASES)
        offsets: list[CommittedOffset] = []
        async for part in slices(request.offsets):
            offsets += [self._checked(group, item, request.client_id) for item in part]
        if not offsets:
            return broker_pb2.CommitOffsetsResponse()
        if len(offsets) > SLICE:  # once more, without an await before the commit: queues may have changed owners
            for item, offset in zip(request.offsets, offsets, strict=True):
                key = LeaseKey(group, QueueKey(offset.topic_id, offset.queue_id))
                self._check_owner(key, item, request.client_id)
        fact = self._fact(request, offsets, request.published or msgspec.UNSET)
        await self._engine.writes.record(lambda _: fact, alone=False)  # the fact does not depend on the state
        return broker_pb2.CommitOffsetsResponse()

    def checked(self, request: broker_pb2.CommitOffsetsRequest) -> OffsetsCommitted:
        """Return the fact of a commit of few offsets, without recording it. Raises what `commit` raises."""
        group = check_group(request.group)
        self._engine.tables.claims.check(group, LEASES)
        return self._fact(request, [self._checked(group, item, request.client_id) for item in request.offsets])

    def _checked(self, group: str, item: broker_pb2.QueueOffset, client_id: str) -> CommittedOffset:
        queue = self._engine.store.state.queue(item.topic, item.queue_id)
        self._check_owner(LeaseKey(group, queue), item, client_id)
        self._check_place(item, queue)
        return CommittedOffset(*queue, item.offset)

    def _fact(
        self,
        request: broker_pb2.CommitOffsetsRequest,
        offsets: Sequence[CommittedOffset],
        published: bool | msgspec.UnsetType = msgspec.UNSET,
    ) -> OffsetsCommitted:
        check_new_group(self._engine, request.group)
        queues = [QueueKey(item.topic_id, item.queue_id) for item in offsets]
        check_new_offsets(self._engine.store.writer.state, request.group, queues)
        return OffsetsCommitted(request.group, tuple(offsets), request.force, published)

    def _check_owner(self, key: LeaseKey, item: broker_pb2.QueueOffset, client_id: str) -> None:
        if client_id:
            self._engine.tables.check_lease(key, client_id, item.epoch)
        elif (owner := self._engine.tables.leases.owner(key)) is not None:
            raise Fenced(
                f"queue {item.topic}/{item.queue_id} belongs to {owner[0]} of group {key.group!r} now: "
                "a consumer with manually assigned queues needs a group of its own"
            )

    def _check_place(self, item: broker_pb2.QueueOffset, queue: QueueKey) -> None:
        end = self._engine.store.queue_end(queue).offset
        if item.offset > end and not self._engine.store.writer.leads:
            raise NotMaster(
                f"offset {item.offset} of queue {item.topic}/{item.queue_id} is beyond what this slave has, up to "
                f"{end}: it can be committed when there is a master again"
            )
        if not 0 <= item.offset <= end:
            raise InvalidArgument(
                f"offset {item.offset} for queue {item.topic}/{item.queue_id} cannot be committed: "
                f"the queue ends at {end}"
            )
        if item.term and item.offset > self._engine.store.end_since(queue, item.term):
            raise OffsetOutOfRange(
                f"offset {item.offset} of queue {item.topic}/{item.queue_id} cannot be committed: the queue was "
                f"shorter after term {item.term}, and its reader will go back"
            )

    async def committed(self, request: broker_pb2.GetCommittedRequest) -> broker_pb2.GetCommittedResponse:
        """Return the committed offsets of a group, of one topic or all. At a slave they may be outdated."""
        state, caller = self._engine.store.state, current_caller()
        answer = broker_pb2.GetCommittedResponse()
        async for part in slices(state.index.queues(request.group)):
            for queue in map(QueueKey._make, part):
                name, offset = state.topic_name(queue.topic_id), state.offset(request.group, queue)
                if offset is None or name is None or request.topic not in ("", name):
                    continue
                if caller.sees(Resource.TOPIC, name):
                    answer.offsets.add(topic=name, queue_id=queue.queue_id, offset=offset)
        if self._engine.store.writer.leads:
            await self._engine.writes.record(lambda _: None)  # waits until they survive a fail-over
            answer.confirmed = True
        return answer


class InitialOffset(NamedTuple):
    """The start of a group in a topic."""

    start: broker_pb2.StartPosition
    #: Since when the group has read the topic on other brokers, or a former topic of that name, in ms since 1970; None
    #: if it has not. Messages sent later are never skipped.
    since_ms: int | None = None


class InitialOffsets:
    """Decides the initial offsets of groups. Belongs to the loop of the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def begin(self, request: broker_pb2.BeginGroupRequest) -> broker_pb2.BeginGroupResponse:
        """Decide where a group begins in topics; see `BeginGroupRequest`. Raises `NotMaster`, `TopicNotFound`."""
        self._engine.writes.check()
        group = check_group(request.group)
        for item in request.topics:
            self._engine.store.state.topic(item.topic)
        if request.decide:
            check_new_group(self._engine, group)
            for item in request.topics:
                since_ms = min(item.since_ms, now_ms()) or None
                await self.decide(group, item.topic, InitialOffset(request.start, since_ms))
        begun = self.begun(group, [item.topic for item in request.topics])
        return broker_pb2.BeginGroupResponse(begun=begun, now_ms=now_ms())

    def begun(self, group: str, names: Iterable[str]) -> list[broker_pb2.TopicBegun]:
        """Return which of the named topics a group has begun here, and how long ago."""
        state, now = self._engine.store.state, now_ms()
        found = []
        for name in names:
            topic = state.topics.get(name)
            at_ms = state.started.get((group, topic.topic_id)) if topic is not None else None
            if at_ms is not None:
                found.append(broker_pb2.TopicBegun(topic=name, ago_ms=max(now - at_ms, 0)))
        return found

    async def decide(self, group: str, name: str, beginning: InitialOffset) -> None:
        """Record the initial offsets of a group in a topic, unless they are decided. Raises `NotMaster`."""
        topic = self._engine.store.state.topics.get(name)
        if topic is not None and (group, topic.topic_id) not in self._engine.store.state.started:
            check_new_offsets(self._engine.store.writer.state, group, topic.queue_keys)
            await self._engine.writes.record(partial(self._fact, group, name, beginning))

    def _fact(self, group: str, name: str, beginning: InitialOffset, state: State) -> GroupStarted | None:
        topic = state.topics.get(name)
        if topic is None or (group, topic.topic_id) in state.started:
            return None
        offsets = tuple(
            CommittedOffset(*queue, self._offset(name, queue, beginning))
            for queue in topic.queue_keys
            if state.offset(group, queue) is None  # otherwise an operator has set one
        )
        return GroupStarted(group, topic.topic_id, offsets, now_ms())

    def _offset(self, name: str, queue: QueueKey, beginning: InitialOffset) -> int:
        store = self._engine.store
        offset = start_offset(store, queue, beginning.start)
        if beginning.since_ms is not None:
            offset = min(offset, store.offset_at(queue, beginning.since_ms))
        return offset


#: Maximum committed offsets of all groups. Each costs several hundred bytes of memory.
MAX_OFFSETS = 500_000


def check_new_group(engine: Engine, group: str) -> None:
    """Raise `SystemBusy` if a group is new here and the broker has the maximum number of groups."""
    state, groups, most = engine.store.writer.state, engine.tables.groups, engine.limits.max_groups
    if state.knows_group(group) or groups.agreement(group) is not None:
        return
    counts = (len(state.index), len(state.agreements), len(state.used), groups.count)
    # Compares names only if the counts are inconclusive: that is slow, and any caller can send new names.
    if sum(counts) < most or (max(counts) < most and len({*state.known_groups(), *groups.names()}) < most):
        return
    raise SystemBusy(
        f"this broker has {most} consumer groups, which is its limit, and does not create "
        f"{group!r}: delete unused ones (minimq group list, minimq group delete)",
        limit="groups",
    )


def check_new_offsets(state: State, group: str, queues: Sequence[QueueKey]) -> None:
    """Raise `SystemBusy` if new offsets of a group would exceed `MAX_OFFSETS`."""
    kept = state.index.offsets
    if kept + len(queues) <= MAX_OFFSETS:
        return
    new = sum(state.offset(group, queue) is None for queue in queues)
    if new and kept + new > MAX_OFFSETS:
        raise SystemBusy(
            f"this broker keeps {kept} committed offsets, the limit is {MAX_OFFSETS}: delete unused groups "
            "(minimq group list, minimq group delete), or topics",
            limit="offsets",
        )
