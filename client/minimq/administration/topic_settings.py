"""The settings of a topic, as users give them and as brokers describe them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import SupportsIndex

from minimq_common.errors import InvalidArgument
from minimq_common.model import MAX_QUEUES, permission_name
from minimq_common.wire.convert import permission_from_wire
from minimq_common.wire.protocol_bounds import MAX_NUMBER, MAX_RETENTION_MS
from minimq_common.words import count_of, kind_of
from minimq_proto.v1 import broker_pb2

_INT32 = range(-(1 << 31), 1 << 31)


def check_queue_counts(**counts: object) -> None:
    """Raise `InvalidArgument` when a count is no number that a request can hold; brokers know the other rules."""
    for name, count in counts.items():
        if count is None:
            continue
        if not isinstance(count, SupportsIndex) or isinstance(count, bool):
            raise InvalidArgument(f"{name} is {kind_of(count)}: give a whole number, 1 to {MAX_QUEUES}")
        if count.__index__() not in _INT32:
            raise InvalidArgument(f"{name} is out of bounds: give a whole number, 1 to {MAX_QUEUES}")


def retention_to_wire(seconds: float) -> int:
    """Return a time in ms. Raises `InvalidArgument` unless it is 0, or one that a topic can have."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidArgument(f"retention_s is {kind_of(seconds)}: give a number of seconds")
    if seconds != 0 and not 0.001 <= seconds <= MAX_RETENTION_MS / 1000:
        raise InvalidArgument(f"retention_s is {seconds}: give up to {MAX_RETENTION_MS // 1000} (100 years), or 0")
    return round(seconds * 1000)


def check_retention_bytes(size: int) -> int:
    """Return a size. Raises `InvalidArgument` unless it is a whole number from 0 on."""
    if type(size) is not int or not 0 <= size <= MAX_NUMBER:
        raise InvalidArgument(f"retention_bytes is {size!r}: it must be a whole number from 0 on, below 2^63")
    return size


def topic_settings(topic: broker_pb2.Topic) -> tuple[object, ...]:
    """Return what two brokers have the same of, if their topic is the same."""
    rules = topic.compaction.SerializeToString(deterministic=True) if topic.HasField("compaction") else None
    kept = topic.retention_ms, topic.retention_bytes
    return topic.read_queues, topic.write_queues, topic.permission, topic.fifo, rules, *kept


def say_exists(name: str, present: Mapping[str, broker_pb2.Topic]) -> str:
    """Name the topic and how the brokers have it, and the remedies."""
    there = "; ".join(
        f"{broker} has {count_of(topic.write_queues, 'write queue')} and {count_of(topic.read_queues, 'read queue')}, "
        f"permission {permission_name(permission_from_wire(topic.permission))}{', FIFO' if topic.fifo else ''}"
        f"{f', compacted with {topic.compaction.key_queues} queues on all' if topic.HasField('compaction') else ''}"
        for broker, topic in present.items()
    )
    return f"topic {name} exists ({there}): change it with `minimq topic update {name}`, or choose another name"
