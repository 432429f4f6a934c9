"""Where groups begin in the topics of a broker: decided once, when a member requests the first queue."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from minimq_broker.core.facts import CommittedOffset, GroupStarted
from minimq_broker.core.state import QueueKey, State
from minimq_broker.services.clock import now_ms
from minimq_broker.services.group_offsets import GroupOffsets
from minimq_broker.services.newcomers import check_new_offsets
from minimq_broker.services.offsets import start_offset
from minimq_broker.services.store_handle import StoreHandle
from minimq_common.names import RETRY_PREFIX
from minimq_proto.v1 import broker_pb2


class Beginning(NamedTuple):
    """Where a group is to begin in a topic."""

    start: broker_pb2.StartPosition
    #: Since when it has read the topic elsewhere, or another topic that had the name before, in ms since 1970; None
    #: when it has not. Messages sent after that are never skipped.
    since_ms: int | None = None


class GroupBeginnings:
    """Decides the initial offsets of groups, and returns the decided ones. Belongs to the loop of the engine."""

    def __init__(self, handle: StoreHandle, offsets: GroupOffsets) -> None:
        self._handle, self._offsets = handle, offsets

    def begun(self, group: str, names: Iterable[str]) -> list[broker_pb2.TopicBegun]:
        """Return the topics in which a group has begun here, and how long ago."""
        state, now = self._handle.store.state, now_ms()
        found = []
        for name in names:
            topic = state.topics.get(name)
            at_ms = state.started.get((group, topic.topic_id)) if topic is not None else None
            if at_ms is not None:
                found.append(broker_pb2.TopicBegun(topic=name, ago_ms=max(now - at_ms, 0)))
        return found

    async def decide(self, group: str, name: str, beginning: Beginning) -> None:
        """Record where a group begins in a topic unless that is decided. Raises as `GroupOffsets.commit` does."""
        topic = self._handle.store.state.topics.get(name)
        if topic is not None and (group, topic.topic_id) not in self._handle.store.state.started:
            queues = [QueueKey(topic.topic_id, queue_id) for queue_id in range(topic.queues)]
            check_new_offsets(self._handle.any_store.state, group, queues)
            await self._offsets.start(partial(self._fact, group, name, beginning))

    def _fact(self, group: str, name: str, beginning: Beginning, state: State) -> GroupStarted | None:
        topic = state.topics.get(name)
        if topic is None or (group, topic.topic_id) in state.started:
            return None
        queues = [QueueKey(topic.topic_id, queue_id) for queue_id in range(topic.queues)]
        offsets = tuple(
            CommittedOffset(*queue, self._offset(name, queue, beginning))
            for queue in queues
            if self._offsets.committed(group, queue) is None  # otherwise somebody committed by hand before
        )
        return GroupStarted(group, topic.topic_id, offsets, now_ms())

    def _offset(self, name: str, queue: QueueKey, beginning: Beginning) -> int:
        store = self._handle.store
        if name.startswith(RETRY_PREFIX):  # what waits there for another try of the group is its own
            return store.bounds(queue)[0]
        offset = start_offset(store, queue, beginning.start)
        if beginning.since_ms is not None:
            offset = min(offset, store.offset_at(queue, beginning.since_ms))
        return offset
