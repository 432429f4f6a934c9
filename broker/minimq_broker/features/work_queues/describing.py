"""The part of work queues in the description of a group."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

from minimq_broker.features.work_queues.pop_queue import PopQueue
from minimq_broker.features.work_queues.pop_runs import PopKey, RunState
from minimq_broker.features.work_queues.table import popped_queues
from minimq_broker.state.state import State
from minimq_common.names import dead_letter_topic
from minimq_proto.v1 import broker_pb2

#: Maximum consumers in the report about a popped queue.
_HOLDERS = 20


async def describe(
    state: State, group: str, described: broker_pb2.DescribeGroupResponse, blocked: Mapping[PopKey, int]
) -> None:
    """Add the popped queues of a group to its description, and its settled dead letters."""
    queues = popped_queues(state)
    for each in described.queues:
        topic = state.topics.get(each.topic)
        key = PopKey(group, topic.topic_id if topic is not None else -1, each.queue_id)
        if (queue := queues.get(key)) is not None:
            each.popped.CopyFrom(_to_wire(queue, each.min_offset, blocked.get(key)))
            await asyncio.sleep(0)  # it may have many thousand bitmaps
    letters = state.topics.get(dead_letter_topic(group))
    for number in range(letters.queues if letters is not None else 0):
        if letters is not None and (queue := queues.get((letters.name, letters.topic_id, number))) is not None:
            flat = [offset for first, end in queue.settled_spans() for offset in (first, end - first)]
            described.settled_letters.add(queue_id=number, spans=flat)


def _to_wire(queue: PopQueue, first: int, blocking: int | None) -> broker_pb2.PoppedQueue:
    holders: Counter[str] = Counter()
    returned = max_delivery_count = 0
    begin, following = max(queue.done, first), queue.next
    for status, count in queue.statuses(first):
        max_delivery_count = max(max_delivery_count, status.delivery_count)
        if status.state is RunState.OUT:
            holders[status.client] += count
        else:
            returned += count
    return broker_pb2.PoppedQueue(
        missed=queue.unsettled_before(first),
        in_flight=holders.total(),
        returned=returned,
        settled_ahead=max(0, following - begin - holders.total() - returned),
        max_delivery_count=max_delivery_count,
        holders=[
            broker_pb2.PopHolder(client_id=client, messages=count) for client, count in holders.most_common(_HOLDERS)
        ],
        blocking_offset=blocking,
    )
