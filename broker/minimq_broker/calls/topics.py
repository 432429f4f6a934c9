"""The calls about topics: create, change, delete, describe."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from minimq_broker.calls.draining import Lag, find_lags, format_lags
from minimq_broker.calls.engine import Engine
from minimq_broker.features.registry import FEATURES
from minimq_broker.log.clock import now_ms
from minimq_broker.state.facts import Fact, Topic, TopicDeleted, TopicSet
from minimq_broker.state.state import State
from minimq_common.errors import InvalidArgument, NotDrained, SystemBusy, TopicExists, TopicNotFound, Unsupported
from minimq_common.model import MAX_QUEUES, Permission, check_all_readable
from minimq_common.names import check_topic
from minimq_common.security.access_rule import Resource
from minimq_common.security.caller import current_caller
from minimq_common.serving.periodic import slices
from minimq_common.text_units import count_of
from minimq_proto.v1 import broker_pb2

#: Queues described per slice; other tasks run in between.
_DESCRIBED_AT_ONCE = 100

_CHANGEABLE = ("read_queues", "write_queues", "permission")
#: Prefix of internal topics.
_SYSTEM_PREFIX = "%"

_Decide = Callable[[State], Fact | None]


class TopicService:
    def __init__(self, engine: Engine, auto_create_queues: int) -> None:
        self._engine = engine
        self._auto_create_queues = auto_create_queues

    async def create(self, request: broker_pb2.CreateTopicRequest) -> broker_pb2.CreateTopicResponse:
        """Create a topic, or with `automatic` one for a producer's first message."""
        check_topic(request.topic.topic)
        self._engine.writes.check()  # before the decision, because a slave may lack the topic
        make = self._decide_automatic(request.topic.topic) if request.automatic else _decide_creation(request)

        def decide(state: State) -> Fact | None:
            fact = make(state)
            if fact is not None:
                self._check_room(state)
            return fact

        created = await self._engine.writes.record(decide, automatic=request.automatic) is not None
        return broker_pb2.CreateTopicResponse(
            topic=self._message(request.topic.topic), created=created, data_version=self._engine.versions.answered
        )

    def _check_room(self, state: State) -> None:
        most = self._engine.limits.max_topics
        if len(state.topics) >= most:
            raise SystemBusy(
                f"this broker carries {len(state.topics)} topics, and its limit is {most}: delete some, "
                "or create topics on other brokers",
                limit="topics",
            )

    def _decide_automatic(self, name: str) -> _Decide:
        if name not in self._engine.store.state.topics:
            self._check_automatic(name)  # here, to spare the writer repeated requests that are rejected
        queues, created_ms = self._auto_create_queues, now_ms()

        def decide(state: State) -> Fact | None:
            if name in state.topics:
                return None
            self._check_automatic(name)  # again, because the topic may have just been deleted
            return TopicSet(Topic(name, state.position, queues, queues, Permission.READ_WRITE, created_ms))

        return decide

    def _check_automatic(self, name: str) -> None:
        if name.startswith(_SYSTEM_PREFIX):
            raise TopicNotFound(f"topic {name!r} does not exist: names that begin with % are not created automatically")
        if not self._auto_create_queues:
            raise TopicNotFound(
                f"topic {name!r} does not exist: create it with `minimq topic create {name}`, or, if it exists, start "
                "the broker that carries it; this one creates none automatically, as --auto-create-queues is 0"
            )

    async def update(self, request: broker_pb2.UpdateTopicRequest) -> broker_pb2.UpdateTopicResponse:
        """Change queue counts, permission or retention."""
        lags: list[Lag] = []

        def decide(state: State) -> Fact | None:
            old = state.topic(request.topic)
            new = _changed(old, request)
            if not request.force and (new.read_queues, new.write_queues) != (old.read_queues, old.write_queues):
                check_all_readable(new.read_queues, new.write_queues)
                hidden = old.queue_keys[new.read_queues : old.read_queues]
                lags[:] = find_lags(state, {queue: self._engine.store.bounds(queue) for queue in hidden})
                if lags:
                    raise NotDrained(format_lags(lags))
            return TopicSet(new) if new != old else None

        try:
            await self._engine.writes.record(decide)
        except NotDrained as error:  # rights are checked here, on the event loop
            sees = partial(current_caller().sees, Resource.GROUP)
            raise error.with_message(format_lags(lags, sees)) from None
        return broker_pb2.UpdateTopicResponse(
            topic=self._message(request.topic), data_version=self._engine.versions.answered
        )

    async def delete(self, request: broker_pb2.DeleteTopicRequest) -> broker_pb2.DeleteTopicResponse:
        """Delete a topic. Its messages are hidden at once and leave the disk with their segments."""
        await self._engine.writes.record(lambda state: TopicDeleted(state.topic(request.topic).name))
        return broker_pb2.DeleteTopicResponse(data_version=self._engine.versions.answered)

    async def describe(self, request: broker_pb2.DescribeTopicRequest) -> broker_pb2.DescribeTopicResponse:
        """Return the settings of a topic and its queues. Raises `TopicNotFound`, `QueueNotFound`."""
        topic, store = self._engine.store.state.topic(request.topic), self._engine.store
        one = request.HasField("queue_id")
        queues = [self._engine.store.state.queue(request.topic, request.queue_id)] if one else topic.queue_keys
        # Reads the term before the offsets, so that these are valid in it even if another term begins meanwhile.
        described = broker_pb2.DescribeTopicResponse(
            topic=_message(topic), data_version=self._engine.versions.answered, term=self._engine.store.state.term
        )
        async for part in slices(queues, _DESCRIBED_AT_ONCE):
            for key in part:
                first, end = store.bounds(key)
                stored_ms = store.queue_end(key).stored_ms
                at = store.offset_at(key, request.timestamp_ms) if request.HasField("timestamp_ms") else 0
                described.queues.add(
                    queue_id=key.queue_id,
                    min_offset=first,
                    max_offset=end,
                    last_store_timestamp_ms=stored_ms,
                    offset_at=at,
                )
        return described

    def _message(self, name: str) -> broker_pb2.Topic:
        return _message(self._engine.store.state.topic(name))


def _message(topic: Topic) -> broker_pb2.Topic:
    described = broker_pb2.Topic(
        topic=topic.name,
        read_queues=topic.read_queues,
        write_queues=topic.write_queues,
        permission=topic.permission,
        created_ms=topic.created_ms,
        topic_id=topic.topic_id,
        fifo=topic.fifo,
    )
    for feature in FEATURES.values():
        feature.describe_topic(topic, described)
    return described


def _decide_creation(request: broker_pb2.CreateTopicRequest) -> _Decide:
    wanted = request.topic
    _check_counts(wanted.read_queues, wanted.write_queues)
    check_all_readable(wanted.read_queues, wanted.write_queues)
    permission = check_permission(wanted.permission or Permission.READ_WRITE)
    created_ms = now_ms()

    def decide(state: State) -> Fact | None:
        present = state.topics.get(wanted.topic)
        if present is None:
            counts = wanted.read_queues, wanted.write_queues
            topic = Topic(wanted.topic, state.position, *counts, permission, created_ms, wanted.fifo)
            return TopicSet(_with_settings(topic, None, wanted))
        if request.if_not_exists:
            return None
        kind = "FIFO topic" if present.fifo else "topic"
        raise TopicExists(
            f"{kind} {present.name!r} exists with {count_of(present.write_queues, 'write queue')} and "
            f"{count_of(present.read_queues, 'read queue')}: change it with minimq topic update, or choose another name"
        )

    return decide


def _changed(old: Topic, request: broker_pb2.UpdateTopicRequest) -> Topic:
    given = {field.name: value for field, value in request.ListFields() if field.name in _CHANGEABLE}
    new = msgspec.structs.replace(old, **given)
    _check_counts(new.read_queues, new.write_queues)
    check_permission(new.permission)
    return _with_settings(new, old, request)


def _with_settings(topic: Topic, former: Topic | None, request: Any) -> Topic:
    for feature in FEATURES.values():
        topic = feature.set_topic(topic, former, request)
    described = {field.name for field, _ in _message(topic).ListFields()}
    for field, value in request.ListFields():
        if value and field.name in broker_pb2.Topic.DESCRIPTOR.fields_by_name and field.name not in described:
            raise Unsupported(f"this broker has no {field.name} of topics: create {topic.name!r} at another one")
    return topic


def _check_counts(read: int, write: int) -> None:
    for kind, count in (("read", read), ("write", write)):
        if not 1 <= count <= MAX_QUEUES:
            raise InvalidArgument(f"{count} {kind} queues: a topic has 1 to {MAX_QUEUES} on each broker")


def check_permission(bits: int) -> Permission:
    """Return the permission. Raises `InvalidArgument` for unknown bits."""
    # Not by `~`, which would let negative numbers pass.
    if bits not in (Permission.NONE, Permission.WRITE, Permission.READ, Permission.READ_WRITE):
        raise InvalidArgument(f"permission {bits}: it is the sum of 2 (write) and 4 (read)")
    return Permission(bits)
