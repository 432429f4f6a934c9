"""The administration of consumer groups: listing, progress and resets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from minimq_broker.calls.engine import Engine
from minimq_broker.groups.groups import GroupConfig
from minimq_broker.groups.idle_groups import GroupExpiry
from minimq_broker.groups.lease_service import LeaseKeeper
from minimq_broker.groups.leases import LeaseKey
from minimq_broker.groups.offsets import check_new_group, check_new_offsets, start_offset
from minimq_broker.state.facts import CommittedOffset, Fact, OffsetsCommitted, Topic
from minimq_broker.state.state import QueueKey, State
from minimq_common.errors import GroupConflict, InvalidArgument, OffsetOutOfRange
from minimq_common.names import check_group, retry_topic
from minimq_common.security.access_rule import Resource
from minimq_common.security.caller import current_caller
from minimq_common.serving.periodic import slices
from minimq_common.text_units import listed
from minimq_proto.v1 import broker_pb2

#: Queues described per slice; other tasks run in between.
_DESCRIBED_AT_ONCE = 50
#: Names whose rights are checked per slice.
_LISTED_AT_ONCE = 100
#: Maximum queues or clients that an error names.
_NAMED = 5


class GroupService:
    def __init__(self, engine: Engine, leases: LeaseKeeper, expiry: GroupExpiry) -> None:
        self._engine = engine
        self._leases = leases
        self._expiry = expiry

    async def list_groups(self, _: broker_pb2.ListGroupsRequest) -> broker_pb2.ListGroupsResponse:
        """Return all groups that have members or state here and that the caller may see, sorted."""
        names = sorted(self._engine.store.state.groups().union(self._engine.tables.groups.names()))
        answer, caller = broker_pb2.ListGroupsResponse(), current_caller()
        async for part in slices(names, _LISTED_AT_ONCE):
            answer.groups.extend(name for name in part if caller.sees_all or caller.sees(Resource.GROUP, name))
        return answer

    # ---- describe -------------------------------------------------------------------------------

    async def describe(self, request: broker_pb2.DescribeGroupRequest) -> broker_pb2.DescribeGroupResponse:
        """Return the members of a group and its progress in each queue; an unknown group has neither."""
        group = check_group(request.group)
        agreement = self._engine.tables.groups.agreement(group) or GroupConfig((), "")
        claims = self._engine.tables.claims
        sees = partial(current_caller().sees, Resource.TOPIC)
        described = broker_pb2.DescribeGroupResponse(
            client_ids=claims.clients(group),
            allocation=agreement.allocation,
            handover_timeout_ms=agreement.handover_timeout_ms,
            bytes_deleted_early=self._engine.counters.bytes_deleted_early,
            expires_ms=expires_ms(self._engine, self._expiry, group),
            published=group in self._engine.store.state.published,
        )
        async for part in slices(described.client_ids, _DESCRIBED_AT_ONCE):
            for client_id in part:
                taken = claims.topics(group, client_id) or self._engine.tables.groups.topics(group, client_id)
                topics = [*filter(sees, taken)]
                described.topics.append(broker_pb2.MemberTopics(client_id=client_id, topics=topics))
        await self._add_queues(described, group, agreement, sees)
        return described

    async def _add_queues(
        self,
        described: broker_pb2.DescribeGroupResponse,
        group: str,
        agreement: GroupConfig | None,
        sees: Callable[[str], bool],
    ) -> None:
        filters = dict(agreement.filters) if agreement else {}
        every = topics_of(self._engine.store.state, group, agreement.topics if agreement else ())
        queues = [(topic, queue_id) for topic in every if sees(topic.name) for queue_id in range(topic.read_queues)]
        async for part in slices(queues, _DESCRIBED_AT_ONCE):
            for topic, queue_id in part:
                found = self._queue(group, topic.name, QueueKey(topic.topic_id, queue_id))
                found.sparse = bool(topic.key_queues) or described.published or filters.get(topic.name, "*") != "*"
                described.queues.append(found)

    def _queue(self, group: str, topic: str, queue: QueueKey) -> broker_pb2.GroupQueue:
        status = self._engine.tables.leases.status(LeaseKey(group, queue), asyncio.get_running_loop().time())
        committed = self._engine.store.state.offset(group, queue)
        first, end = self._engine.store.bounds(queue)
        unread = max(first, committed or 0)
        return broker_pb2.GroupQueue(
            topic=topic,
            queue_id=queue.queue_id,
            owner=status.owner,
            epoch=status.epoch,
            holder=status.holder,
            held_ms=round(status.held_s * 1000),
            waiting=status.waiting,
            min_offset=first,
            max_offset=end,
            committed_offset=committed,
            oldest_unread_ms=self._engine.store.stored_ms(queue, unread) if unread < end else 0,
        )

    # ---- reset ----------------------------------------------------------------------------------

    async def reset(self, request: broker_pb2.ResetOffsetsRequest) -> broker_pb2.ResetOffsetsResponse:
        """Move a group to other offsets. All offsets are on disk when this returns, or none has changed."""
        group = check_group(request.group)
        if group in self._engine.store.state.published:
            raise GroupConflict(
                f"group {group!r} has published offsets only (consumerGroup of a Spark query), which nobody reads back"
            )
        place = self._place(request)
        topic = self._engine.store.state.topic(request.topic)
        ids = sorted(set(request.queue_ids)) or range(topic.queues)
        check_new_group(self._engine, group)
        keys = [LeaseKey(group, self._engine.store.state.queue(request.topic, queue_id)) for queue_id in ids]

        def decide(state: State) -> Fact:
            queues = [state.queue(request.topic, queue_id) for queue_id in ids]
            offsets = tuple(CommittedOffset(*queue, place(queue)) for queue in queues)
            return OffsetsCommitted(group, offsets, forced=True)

        check_new_offsets(self._engine.store.writer.state, group, [key.queue for key in keys])
        if not request.force:
            check_idle(self._engine, group, keys, "reset")
        self._leases.renew(keys)
        fact = await self._engine.writes.record(decide)
        assert isinstance(fact, OffsetsCommitted)
        return broker_pb2.ResetOffsetsResponse(
            offsets=[
                broker_pb2.QueueOffset(topic=request.topic, queue_id=item.queue_id, offset=item.offset)
                for item in fact.offsets
            ]
        )

    def _place(self, request: broker_pb2.ResetOffsetsRequest) -> Callable[[QueueKey], int]:
        store = self._engine.store
        if request.start.at:
            return lambda queue: start_offset(store, queue, request.start)
        if request.WhichOneof("to") != "offset":
            raise InvalidArgument("the reset has no position: give earliest, latest, a time or an offset")

        def checked(queue: QueueKey) -> int:
            first, end = store.bounds(queue)
            if not first <= request.offset <= end:
                raise OffsetOutOfRange(
                    f"offset {request.offset} of queue {request.topic}/{queue.queue_id} is not stored: "
                    f"valid are {first} to {end} (the next message gets {end})"
                )
            return request.offset

        return checked


def check_idle(engine: Engine, group: str, keys: Iterable[LeaseKey], action: str) -> None:
    """Raise `GroupConflict` if a group has connected members, or queues that are held for former ones."""
    if members := engine.tables.claims.clients(group):
        raise GroupConflict(
            f"group {group!r} has members that are connected: {listed(members, _NAMED)}: stop them first, or force the "
            f"{action}"
        )
    now = asyncio.get_running_loop().time()
    statuses = [(key.queue.queue_id, engine.tables.leases.status(key, now)) for key in keys]
    held = [f"{queue_id} for {status.owner or status.holder}" for queue_id, status in statuses if status.is_taken]
    if held:
        raise GroupConflict(
            f"queues of group {group!r} are held for members that have left: {listed(held, _NAMED)}: "
            f"wait until that is over, or force the {action}"
        )


def expires_ms(engine: Engine, expiry: GroupExpiry, group: str) -> int | None:
    """Return when an unused group will be deleted, in ms since 1970; None if never, such as with pending retries."""
    found = expiry.expires_ms(engine.store.state, group, has_members=bool(engine.tables.claims.clients(group)))
    return None if found is None or _waits_for_retry(engine, group) else found


def _waits_for_retry(engine: Engine, group: str) -> bool:
    topic = engine.store.state.topics.get(retry_topic(group))
    if topic is None:
        return False
    for queue in topic.queue_keys:
        first, end = engine.store.bounds(queue)
        if max(first, engine.store.state.offset(group, queue) or 0) < end:
            return True
    return False


def topics_of(state: State, group: str, subscribed: Iterable[str] = ()) -> list[Topic]:
    """Return the topics that a group reads: those it has begun, and those its members subscribe to."""
    names = {*subscribed, *filter(None, map(state.topic_name, state.index.topics(group)))}
    return [topic for name in sorted(names) if (topic := state.topics.get(name)) is not None]
