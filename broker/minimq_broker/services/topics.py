"""Topics: create, change, delete, describe."""

from __future__ import annotations

from minimq_broker.core.facts import Fact, Topic, TopicDeleted, TopicSet
from minimq_broker.core.state import QueueKey, State
from minimq_broker.services.engine import Engine, now_ms
from minimq_common.errors import InvalidArgument, TopicExists
from minimq_common.model import Permission
from minimq_common.names import check_topic
from minimq_proto.v1 import broker_pb2

MAX_QUEUES = 1024


class TopicService:
    """The calls of the broker that concern topics."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def create(self, request: broker_pb2.CreateTopicRequest) -> broker_pb2.CreateTopicResponse:
        """Create a topic. Raises `TopicExists`, `InvalidArgument`."""
        wanted = request.topic
        check_topic(wanted.topic)
        _check_counts(wanted.read_queues, wanted.write_queues)
        permission = _permission(wanted.permission or Permission.READ_WRITE)
        created_ms = now_ms()

        def decide(state: State) -> Fact | None:
            present = state.topics.get(wanted.topic)
            topic = Topic(wanted.topic, state.position, wanted.read_queues, wanted.write_queues, permission, created_ms)
            if present is None:
                return TopicSet(topic)
            same = (present.read_queues, present.write_queues, present.permission) == (
                topic.read_queues,
                topic.write_queues,
                topic.permission,
            )
            if request.if_not_exists and same:
                return None
            raise TopicExists(
                f"topic {present.name!r} exists with {present.write_queues} write and {present.read_queues} read "
                "queues: change it with minimq topic update, or choose another name"
            )

        await self._engine.record(decide)
        return broker_pb2.CreateTopicResponse()

    async def update(self, request: broker_pb2.UpdateTopicRequest) -> broker_pb2.UpdateTopicResponse:
        """Change queue counts or permission. Raises `TopicNotFound`, `InvalidArgument`."""

        def decide(state: State) -> Fact:
            old = state.topic(request.topic)
            read = request.read_queues if request.HasField("read_queues") else old.read_queues
            write = request.write_queues if request.HasField("write_queues") else old.write_queues
            permission = request.permission if request.HasField("permission") else old.permission
            _check_counts(read, write)
            return TopicSet(Topic(old.name, old.topic_id, read, write, _permission(permission), old.created_ms))

        await self._engine.record(decide)
        return broker_pb2.UpdateTopicResponse(topic=_message(self._engine.state.topic(request.topic)))

    async def delete(self, request: broker_pb2.DeleteTopicRequest) -> broker_pb2.DeleteTopicResponse:
        """Delete a topic; its messages are gone at once, their disk when their segments go. Raises `TopicNotFound`."""
        await self._engine.record(lambda state: TopicDeleted(state.topic(request.topic).name))
        return broker_pb2.DeleteTopicResponse()

    async def describe(self, request: broker_pb2.DescribeTopicRequest) -> broker_pb2.DescribeTopicResponse:
        """Tell the settings of a topic and where its queues begin and end. Raises `TopicNotFound`."""
        topic = self._engine.state.topic(request.topic)
        queues = []
        for queue_id in range(topic.queues):
            key = QueueKey(topic.topic_id, queue_id)
            first, end = self._engine.store.bounds(key)
            queues.append(
                broker_pb2.QueueStatus(
                    queue_id=queue_id,
                    min_offset=first,
                    max_offset=end,
                    last_store_timestamp_ms=self._engine.state.end(key).stored_ms,
                )
            )
        return broker_pb2.DescribeTopicResponse(topic=_message(topic), queues=queues)


def _message(topic: Topic) -> broker_pb2.Topic:
    return broker_pb2.Topic(
        topic=topic.name,
        read_queues=topic.read_queues,
        write_queues=topic.write_queues,
        permission=topic.permission,
        created_ms=topic.created_ms,
    )


def _check_counts(read: int, write: int) -> None:
    for kind, count in (("read", read), ("write", write)):
        if not 1 <= count <= MAX_QUEUES:
            raise InvalidArgument(f"{count} {kind} queues: a topic has 1 to {MAX_QUEUES} on each broker")


def _permission(bits: int) -> Permission:
    if bits & ~Permission.READ_WRITE:
        raise InvalidArgument(f"permission {bits}: it is the sum of 2 (write) and 4 (read)")
    return Permission(bits)
