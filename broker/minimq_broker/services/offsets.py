"""Offsets: by time, and the committed offsets of groups."""

from __future__ import annotations

import msgspec

from minimq_broker.core.facts import CommittedOffset, OffsetsCommitted
from minimq_broker.core.leases import LeaseKey
from minimq_broker.core.state import QueueKey
from minimq_broker.services.engine import Engine
from minimq_broker.services.newcomers import check_new_group, check_new_offsets
from minimq_broker.store.message_store import MessageStore
from minimq_common.errors import Fenced, InvalidArgument, NotMaster, OffsetOutOfRange
from minimq_common.names import check_group
from minimq_common.security.access_rule import Resource
from minimq_common.security.caller import current_caller
from minimq_common.slices import SLICE, slices
from minimq_proto.v1 import broker_pb2


def start_offset(store: MessageStore, queue: QueueKey, start: broker_pb2.StartPosition) -> int:
    """Return the offset at which a position is in a queue; without one, the end. Any thread may call this."""
    first, end = store.bounds(queue)
    match start.at:
        case broker_pb2.START_AT_EARLIEST:
            return first
        case broker_pb2.START_AT_TIMESTAMP:
            return store.offset_at(queue, start.timestamp_ms)
        case _:
            return end


def _fact(item: broker_pb2.QueueOffset, queue: QueueKey, client_id: str) -> CommittedOffset:
    if not client_id:
        return CommittedOffset(*queue, item.offset)
    # An ordinary commit of the offset at which a message may have killed a member says nothing about that message.
    return CommittedOffset(*queue, item.offset, item.tries or None, item.epoch, item.in_hand_end)


class OffsetService:
    """The calls of the broker that concern offsets."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def at_time(self, request: broker_pb2.GetOffsetRequest) -> broker_pb2.GetOffsetResponse:
        """Return the first offset stored at or after a time. Raises `TopicNotFound`, `QueueNotFound`."""
        queue = self._engine.state.queue(request.topic, request.queue_id)
        return broker_pb2.GetOffsetResponse(offset=self._engine.store.offset_at(queue, request.timestamp_ms))

    async def commit(self, request: broker_pb2.CommitOffsetsRequest) -> broker_pb2.CommitOffsetsResponse:
        """Record how far a group is. All offsets are on disk when this returns, or none was taken."""
        group = check_group(request.group)
        self._engine.tables.poppers.check_none(group)
        queues: list[QueueKey] = []
        async for part in slices(request.offsets):
            for item in part:
                queue = self._engine.state.queue(item.topic, item.queue_id)
                self._check_owner(LeaseKey(group, queue), item, request.client_id)
                self._check_place(item, queue)
                queues.append(queue)
        if not queues:
            return broker_pb2.CommitOffsetsResponse()
        check_new_group(self._engine, group)
        check_new_offsets(self._engine.handle.any_store.state, group, queues)
        if len(queues) > SLICE:  # again, in one go with the commit: a queue may have changed hands meanwhile
            for item, queue in zip(request.offsets, queues, strict=True):
                self._check_owner(LeaseKey(group, queue), item, request.client_id)
        offsets = tuple(
            _fact(item, queue, request.client_id) for item, queue in zip(request.offsets, queues, strict=True)
        )
        published = request.published or msgspec.UNSET
        await self._engine.offsets.commit(OffsetsCommitted(group, offsets, request.force, published))
        return broker_pb2.CommitOffsetsResponse()

    def checked(self, request: broker_pb2.CommitOffsetsRequest) -> OffsetsCommitted:
        """Return the fact of a commit of few offsets. Raises as `commit` does."""
        group = check_group(request.group)
        self._engine.tables.poppers.check_none(group)
        offsets = []
        for item in request.offsets:
            queue = self._engine.state.queue(item.topic, item.queue_id)
            self._check_owner(LeaseKey(group, queue), item, request.client_id)
            self._check_place(item, queue)
            offsets.append(_fact(item, queue, request.client_id))
        check_new_group(self._engine, group)
        queues = [QueueKey(item.topic_id, item.queue_id) for item in offsets]
        check_new_offsets(self._engine.handle.any_store.state, group, queues)
        return OffsetsCommitted(group, tuple(offsets), request.force)

    def _check_owner(self, key: LeaseKey, item: broker_pb2.QueueOffset, client_id: str) -> None:
        if client_id:
            self._engine.leases.check(key, client_id, item.epoch)
        elif (owner := self._engine.leases.owner(key)) is not None:
            raise Fenced(
                f"queue {item.topic}/{item.queue_id} belongs to {owner[0]} of group {key.group!r} now: "
                "a consumer with manually assigned queues needs a group of its own"
            )

    def _check_place(self, item: broker_pb2.QueueOffset, queue: QueueKey) -> None:
        end = self._engine.store.queue_end(queue).offset
        if item.offset > end and self._engine.handle.is_slave:
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
        """Return the committed offsets of a group, of one topic or of all. A slave may not have the latest ones yet."""
        name_of, caller = self._engine.state.topic_name, current_caller()
        answer = broker_pb2.GetCommittedResponse()
        async for part in slices(list((await self._engine.offsets.of_group(request.group)).items())):
            for queue, offset in part:
                name = name_of(queue.topic_id)
                if name is not None and request.topic in ("", name) and caller.sees(Resource.TOPIC, name):
                    answer.offsets.add(topic=name, queue_id=queue.queue_id, offset=offset)
        if not self._engine.handle.is_slave:
            await self._engine.offsets.settle()  # unconfirmed offsets could go back after a fail-over
        return answer
