"""Reads what brokers send when they register."""

from __future__ import annotations

import functools
import sys
from collections.abc import Container, Iterable, Mapping

from minimq_common.model import QueueData
from minimq_common.names import check_topic
from minimq_common.wire import permission_from_wire, queue_data
from minimq_nameserver.broker_state import BrokerState
from minimq_nameserver.loop_share import LoopShare
from minimq_proto.v1 import nameserver_pb2

#: Topics that are read in one go, in well under a millisecond; in between, look-ups may be answered.
_SLICE = 500
#: Fields of a registration besides its topics.
_FIELDS = 8


class RegistrationReader:
    """Turns registrations into values, a slice of the topics at a time. Lives on one event loop.

    Large registrations take turns: were all brokers of a large cluster to register at once, look-ups would otherwise
    wait for a slice of each. Until its turn comes, one is held as the bytes that came in.
    """

    def __init__(self) -> None:
        self._share = LoopShare()

    async def read(self, request: nameserver_pb2.RegisterRequest, known_topics: Container[str]) -> BrokerState:
        """Return what a broker tells."""
        topics: dict[str, QueueData] = {}
        if len(request.topics) <= _SLICE:
            _read_topics(topics, request.broker_name, request.topics, known_topics)
        else:
            async with self._share:
                for start in range(0, len(request.topics), _SLICE):
                    part = request.topics[start : start + _SLICE]
                    _read_topics(topics, request.broker_name, part, known_topics)
                    await self._share.turn()
        return _state(request, topics)


def _state(request: nameserver_pb2.RegisterRequest, topics: Mapping[str, QueueData]) -> BrokerState:
    return BrokerState(
        cluster=request.cluster,
        broker_name=request.broker_name,
        broker_id=request.broker_id,
        address=request.address,
        data_version=request.data_version,
        permission=permission_from_wire(request.permission),
        topics=topics,
    )


def _read_topics(
    topics: dict[str, QueueData],
    broker_name: str,
    configs: Iterable[nameserver_pb2.TopicConfig],
    known_topics: Container[str],
) -> None:
    for config in configs:
        topic = sys.intern(config.topic)  # many brokers carry it, and each of them sends it again and again
        if topic not in known_topics:
            check_topic(topic)
        counts = config.read_queues, config.write_queues
        topics[topic] = _queue_data(broker_name, *counts, config.permission, config.key_queues)


# Most topics of a broker look alike: one object for all of them, in this registration and the next, saves memory and
# makes the comparison of two registrations quick.
_queue_data = functools.lru_cache(maxsize=1 << 14)(queue_data)
