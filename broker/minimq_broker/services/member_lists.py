"""The list of the members of a group, as they are told it."""

from __future__ import annotations

from collections.abc import Iterable

from minimq_broker.core.groups import Members
from minimq_common.slices import slices
from minimq_proto.v1 import broker_pb2


async def member_list(members: Members, begun: Iterable[broker_pb2.TopicBegun], grace_ms: int) -> bytes:
    """Return the list, encoded. Whoever else waits for the event loop comes in between.

    Args:
        members: of the group.
        begun: its topics, and since when it has begun in them.
        grace_ms: time for which a member that is gone may come back.
    """
    event = broker_pb2.GroupMembers(
        group=members.group, version=members.version, client_ids=members.client_ids, grace_ms=grace_ms, begun=begun
    )
    for client_id, topics in members.topics.items():
        event.topics.add(client_id=client_id, topics=topics)
    for client_id, held in members.held.items():
        entry = event.held.add(client_id=client_id)
        async for part in slices(held):
            for queue in part:
                entry.queues.add(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)
    return broker_pb2.SessionEvent(members=event).SerializeToString()
