"""The member list of a large group is made in slices, and tells all that its members hold."""

from __future__ import annotations

import asyncio

from minimq_broker.core.groups import Members
from minimq_broker.services.session_table import member_list
from minimq_common.model import MessageQueue
from minimq_common.serving.periodic import SLICE
from minimq_proto.v1 import broker_pb2

SLICES = 20


def test_others_have_their_turn_while_a_list_is_made() -> None:
    queues = [MessageQueue("t", "b", number) for number in range(SLICES * SLICE)]
    members = Members("g", 7, ("a", "b"), {"b": tuple(queues)}, {"a": ("t",)})
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def made() -> bytes:
        task = asyncio.create_task(others())
        data = await member_list(members, [broker_pb2.TopicBegun(topic="t", ago_ms=5)], 3000)
        task.cancel()
        return data

    told = broker_pb2.SessionEvent.FromString(asyncio.run(made())).members
    assert turns >= SLICES - 1
    assert (told.group, told.version, list(told.client_ids), told.grace_ms) == ("g", 7, ["a", "b"], 3000)
    [held] = told.held
    assert held.client_id == "b"
    assert [MessageQueue(item.topic, item.broker_name, item.queue_id) for item in held.queues] == queues
    assert [(item.client_id, list(item.topics)) for item in told.topics] == [("a", ["t"])]
    assert [item.ago_ms for item in told.begun] == [5]
