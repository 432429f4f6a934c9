"""The `Describe` call: the work queues of a group, and its dead letters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from minimq_broker.calls.engine import Engine
from minimq_broker.features.work_queues.pop_queue import PopQueue
from minimq_broker.features.work_queues.pop_runs import PopKey, RunState
from minimq_broker.features.work_queues.table import popped_queues
from minimq_broker.groups.group_service import topics_of
from minimq_broker.state.state import QueueKey
from minimq_common.names import check_group, dead_letter_topic
from minimq_common.security.access_rule import Resource
from minimq_common.security.caller import current_caller
from minimq_proto.v1 import work_queues_pb2

#: Maximum consumers in the report about a popped queue.
_HOLDERS = 20


async def describe(
    engine: Engine, blocked: Callable[[], Mapping[PopKey, int]], request: work_queues_pb2.DescribeWorkQueuesRequest
) -> work_queues_pb2.DescribeWorkQueuesResponse:
    """Return the popped queues of a group in topics that the caller may see, and its dead letters."""
    group, store, described = check_group(request.group), engine.store, work_queues_pb2.DescribeWorkQueuesResponse()
    sees = partial(current_caller().sees, Resource.TOPIC)
    for topic in topics_of(store.state, group):
        for queue_id in range(topic.read_queues if sees(topic.name) else 0):
            key = PopKey(group, topic.topic_id, queue_id)
            if (queue := popped_queues(store.state).get(key)) is not None:
                first, end = store.bounds(QueueKey(topic.topic_id, queue_id))
                described.queues.append(_to_wire(topic.name, queue_id, queue, first, end, blocked().get(key)))
                await asyncio.sleep(0)  # it may have many thousand bitmaps
    letters = store.state.topics.get(dead_letter_topic(group))
    for number in range(letters.queues if letters is not None else 0):
        assert letters is not None
        first, end = store.bounds(QueueKey(letters.topic_id, number))
        described.dead_letters += end - first
        if (queue := popped_queues(store.state).get((letters.name, letters.topic_id, number))) is not None:
            flat = [offset for first, end in queue.settled_spans() for offset in (first, end - first)]
            described.settled_letters.add(queue_id=number, spans=flat)
    return described


def _to_wire(
    topic: str, queue_id: int, queue: PopQueue, first: int, end: int, blocking: int | None
) -> work_queues_pb2.PoppedQueue:
    holders: Counter[str] = Counter()
    returned = max_delivery_count = 0
    begin, following = max(queue.done, first), queue.next
    for status, count in queue.statuses(first):
        max_delivery_count = max(max_delivery_count, status.delivery_count)
        if status.state is RunState.OUT:
            holders[status.client] += count
        else:
            returned += count
    missed = queue.unsettled_before(first)
    return work_queues_pb2.PoppedQueue(
        topic=topic,
        queue_id=queue_id,
        unsettled=max(0, queue.unsettled_before(end) - missed),
        missed=missed,
        in_flight=holders.total(),
        returned=returned,
        settled_ahead=max(0, following - begin - holders.total() - returned),
        max_delivery_count=max_delivery_count,
        holders=[
            work_queues_pb2.PopHolder(client_id=client, messages=count)
            for client, count in holders.most_common(_HOLDERS)
        ],
        blocking_offset=blocking,
    )
