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
_NAMED_QUEUES = 10


class TopicService:
    """The calls of the broker that concern topics."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def create(self, request: broker_pb2.CreateTopicRequest) -> broker_pb2.CreateTopicResponse:
        """Create a topic. Raises `TopicExists`, `InvalidArgument`."""
        wanted = request.topic
        check_topic(wanted.topic)
        _check_counts(wanted.read_queues, wanted.write_queues)
        _check_all_readable(wanted.read_queues, wanted.write_queues)
        permission = check_permission(wanted.permission or Permission.READ_WRITE)
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
        return broker_pb2.CreateTopicResponse(topic=self._message(wanted.topic))

    async def update(self, request: broker_pb2.UpdateTopicRequest) -> broker_pb2.UpdateTopicResponse:
        """Change queue counts or permission. Raises `TopicNotFound`, `InvalidArgument`."""
        present = self._engine.state.topic(request.topic)
        firsts = [self._engine.store.bounds(queue)[0] for queue in _queues(present)]

        def decide(state: State) -> Fact:
            old = state.topic(request.topic)
            read = request.read_queues if request.HasField("read_queues") else old.read_queues
            write = request.write_queues if request.HasField("write_queues") else old.write_queues
            permission = request.permission if request.HasField("permission") else old.permission
            _check_counts(read, write)
            if not request.force and (read, write) != (old.read_queues, old.write_queues):
                _check_all_readable(read, write)
                _check_nothing_hidden(old, read, [state.end(queue).offset for queue in _queues(old)], firsts)
            return TopicSet(Topic(old.name, old.topic_id, read, write, check_permission(permission), old.created_ms))

        await self._engine.record(decide)
        return broker_pb2.UpdateTopicResponse(topic=self._message(request.topic))

    async def delete(self, request: broker_pb2.DeleteTopicRequest) -> broker_pb2.DeleteTopicResponse:
        """Delete a topic; its messages are gone at once, their disk when their segments go. Raises `TopicNotFound`."""
        await self._engine.record(lambda state: TopicDeleted(state.topic(request.topic).name))
        return broker_pb2.DeleteTopicResponse()

    async def describe(self, request: broker_pb2.DescribeTopicRequest) -> broker_pb2.DescribeTopicResponse:
        """Tell the settings of a topic and where its queues begin and end. Raises `TopicNotFound`."""
        topic = self._engine.state.topic(request.topic)
        queues = []
        for key in _queues(topic):
            first, end = self._engine.store.bounds(key)
            queues.append(
                broker_pb2.QueueStatus(
                    queue_id=key.queue_id,
                    min_offset=first,
                    max_offset=end,
                    last_store_timestamp_ms=self._engine.state.end(key).stored_ms,
                )
            )
        return broker_pb2.DescribeTopicResponse(topic=topic_message(topic, self._engine.state), queues=queues)

    def _message(self, name: str) -> broker_pb2.Topic:
        state = self._engine.state
        return topic_message(state.topic(name), state)


def topic_message(topic: Topic, state: State) -> broker_pb2.Topic:
    """Return a topic as it travels."""
    return broker_pb2.Topic(
        topic=topic.name,
        read_queues=topic.read_queues,
        write_queues=topic.write_queues,
        permission=topic.permission,
        created_ms=topic.created_ms,
        allowed=int(state.allowed(topic)),
    )


def _queues(topic: Topic) -> list[QueueKey]:
    return [QueueKey(topic.topic_id, queue_id) for queue_id in range(topic.queues)]


def _check_counts(read: int, write: int) -> None:
    for kind, count in (("read", read), ("write", write)):
        if not 1 <= count <= MAX_QUEUES:
            raise InvalidArgument(f"{count} {kind} queues: a topic has 1 to {MAX_QUEUES} on each broker")


def _check_all_readable(read: int, write: int) -> None:
    if read < write:
        raise InvalidArgument(
            f"{read} read queues and {write} write queues: nobody could read what is sent to the others; "
            "give at least as many read queues"
        )


def _check_nothing_hidden(topic: Topic, read: int, ends: list[int], firsts: list[int]) -> None:
    """Refuse fewer read queues while one of the others holds messages; ends and first offsets are by queue."""
    # A queue that was added meanwhile has no first offset here: it begins at 0.
    starts = [*firsts, *[0] * len(ends)]
    held = {queue: ends[queue] - starts[queue] for queue in range(read, topic.read_queues)}
    held = {queue: count for queue, count in held.items() if count > 0}
    if held:
        count = sum(held.values())
        names = ", ".join(map(str, [*held][:_NAMED_QUEUES])) + (", ..." if len(held) > _NAMED_QUEUES else "")
        raise InvalidArgument(
            f"{'queue' if len(held) == 1 else 'queues'} {names} of topic {topic.name!r} on this broker still "
            f"{'holds' if len(held) == 1 else 'hold'} {count:,} {'message' if count == 1 else 'messages'}: lower "
            "--write-queues first and let every group read the rest; --force hides them all the same"
        )


def check_permission(bits: int) -> Permission:
    """Return the permission. Raises `InvalidArgument` when a bit has no meaning."""
    if bits & ~Permission.READ_WRITE:
        raise InvalidArgument(f"permission {bits}: it is the sum of 2 (write) and 4 (read)")
    return Permission(bits)
