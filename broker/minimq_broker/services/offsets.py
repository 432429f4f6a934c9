"""Offsets: by time, and those that groups have committed."""

from __future__ import annotations

from minimq_broker.core.facts import CommittedOffset, OffsetsCommitted
from minimq_broker.core.leases import LeaseKey
from minimq_broker.core.state import QueueKey
from minimq_broker.services.engine import Engine
from minimq_broker.store.message_store import MessageStore
from minimq_common.errors import Fenced, InvalidArgument, NotMaster, OffsetOutOfRange
from minimq_common.names import check_group
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


class OffsetService:
    """The calls of the broker that concern offsets."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def at_time(self, request: broker_pb2.GetOffsetRequest) -> broker_pb2.GetOffsetResponse:
        """Tell the first offset stored at or after a time. Raises `TopicNotFound`, `QueueNotFound`."""
        queue = self._engine.state.queue(request.topic, request.queue_id)
        return broker_pb2.GetOffsetResponse(offset=self._engine.store.offset_at(queue, request.timestamp_ms))

    async def commit(self, request: broker_pb2.CommitOffsetsRequest) -> broker_pb2.CommitOffsetsResponse:
        """Record how far a group is. All offsets are on disk when this returns, or none was taken.

        Raises:
            Fenced: the member does not own one of the queues.
            OffsetOutOfRange: it is of messages that were taken back, as its reader is about to learn.
            InvalidArgument: an offset is negative or beyond the end of its queue.
            NotMaster: it is beyond the end that a slave knows, or this broker does not serve groups.
            TopicNotFound, QueueNotFound: one of the queues is not here.
        """
        group = check_group(request.group)
        state = self._engine.state
        offsets = []
        for item in request.offsets:
            queue = state.queue(item.topic, item.queue_id)
            key = LeaseKey(group, queue)
            owner = self._engine.leases.owner(key)
            if request.client_id:
                self._engine.leases.check(key, request.client_id, item.epoch)
            elif owner is not None:
                raise Fenced(
                    f"queue {item.topic}/{item.queue_id} belongs to {owner[0]} of group {group!r} now: "
                    "who assigns queues by hand needs a group of its own"
                )
            end = self._engine.store.queue_end(queue).offset
            if item.offset > end and self._engine.slot.is_slave:
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
            offsets.append(CommittedOffset(queue.topic_id, queue.queue_id, item.offset))
        fact = OffsetsCommitted(group, tuple(offsets), request.force)
        if offsets:
            await self._engine.offsets.commit(fact)
        return broker_pb2.CommitOffsetsResponse()

    async def committed(self, request: broker_pb2.GetCommittedRequest) -> broker_pb2.GetCommittedResponse:
        """Tell the committed offsets of a group, of one topic or of all. A slave may not have the latest ones yet.

        Raises:
            NotMaster: it cannot be sure any more that it is the master: others may have been committed elsewhere.
        """
        names = {topic.topic_id: name for name, topic in self._engine.state.topics.copy().items()}
        found = self._engine.offsets.of_group(request.group)
        offsets = [
            broker_pb2.QueueOffset(topic=names[topic_id], queue_id=queue_id, offset=offset)
            for (topic_id, queue_id), offset in found.items()
            if topic_id in names and request.topic in ("", names[topic_id])
        ]
        if not self._engine.slot.is_slave:
            await self._engine.offsets.settle()  # what is not confirmed could be seen to go back after a fail-over
        return broker_pb2.GetCommittedResponse(offsets=offsets)
