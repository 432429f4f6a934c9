"""Reads what brokers send when they register."""

from __future__ import annotations

import functools
import sys
from collections.abc import Container

from minimq_common.model import QueueData
from minimq_common.names import check_topic
from minimq_common.slices import slices
from minimq_common.wire.values import permission_from_wire, queue_data
from minimq_nameserver.broker_state import BrokerState
from minimq_proto.v1 import nameserver_pb2


async def read_registration(request: nameserver_pb2.RegisterRequest, known_topics: Container[str]) -> BrokerState:
    """Return what a broker tells; look-ups are answered between two slices of its topics."""
    topics: dict[str, QueueData] = {}
    async for part in slices(request.topics):
        for config in part:
            topic = sys.intern(config.topic)  # many brokers carry it, and each of them sends it again and again
            if topic not in known_topics:
                check_topic(topic)
            counts = config.read_queues, config.write_queues
            topics[topic] = _queue_data(request.broker_name, *counts, config.permission, config.key_queues)
    return BrokerState(
        cluster=request.cluster,
        broker_name=request.broker_name,
        broker_id=request.broker_id,
        address=request.address,
        data_version=request.data_version,
        permission=permission_from_wire(request.permission),
        topics=topics,
    )


# Most topics of a broker look alike: one object for all of them, in this registration and the next, saves memory and
# makes the comparison of two registrations quick.
_queue_data = functools.lru_cache(maxsize=1 << 14)(queue_data)
