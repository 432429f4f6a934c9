"""Reads what brokers send when they register."""

from __future__ import annotations

import functools
import sys
from collections.abc import Container, Iterable, Iterator, Mapping

from google.protobuf.message import DecodeError

from minimq_common.errors import InvalidArgument
from minimq_common.model import QueueData
from minimq_common.names import check_topic
from minimq_common.wire import permission_from_wire, queue_data
from minimq_nameserver.bounds import MAX_TOPICS_OF_A_BROKER
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

    async def read_encoded(self, request: bytes, known_topics: Container[str]) -> BrokerState:
        """Return what a broker tells in an encoded request. As `read` otherwise."""
        topics: dict[str, QueueData] = {}
        head = nameserver_pb2.RegisterRequest()
        names = set()
        async with self._share:
            for part in _parts(request):
                name = part.broker_name or head.broker_name
                names.add(name)
                _read_topics(topics, name, part.topics, known_topics)
                del part.topics[:]
                head.MergeFrom(part)
                await self._share.turn()
        if head.heartbeat_only:
            raise InvalidArgument(f"a heartbeat of {head.broker_name} came with {len(topics)} topics")
        if names != {head.broker_name}:
            raise InvalidArgument(f"the table of {head.broker_name} came before its name")
        return _state(head, topics)


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


def _parts(request: bytes) -> Iterator[nameserver_pb2.RegisterRequest]:
    """Yield an encoded request in parts with some hundred fields.

    Fields one after the other are a message of their own, wherever it is cut between two of them.
    """
    start = at = fields = 0
    while at < len(request):
        at = _end_of_field(request, at)
        fields += 1
        if fields > MAX_TOPICS_OF_A_BROKER + _FIELDS:
            raise _too_many()
        if fields % _SLICE == 0 or at == len(request):
            try:
                yield nameserver_pb2.RegisterRequest.FromString(request[start:at])
            except DecodeError:
                raise _garbled() from None
            start = at


def _end_of_field(request: bytes, at: int) -> int:
    tag, at = _varint(request, at)
    match tag & 7:
        case 2:
            length, at = _varint(request, at)
            at += length
        case 0:
            _, at = _varint(request, at)
        case _:
            raise _garbled()
    if at > len(request):
        raise _garbled()
    return at


def _varint(request: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for byte in request[at : at + 10]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _garbled()


def _too_many() -> InvalidArgument:
    return InvalidArgument(
        f"a broker registers more than {MAX_TOPICS_OF_A_BROKER} topics, which is the limit: spread them over more"
    )


def _garbled() -> InvalidArgument:
    return InvalidArgument("a registration is invalid")


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
