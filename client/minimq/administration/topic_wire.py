"""Topics as brokers describe them: compared, and said in words."""

from __future__ import annotations

from collections.abc import Mapping

from minimq_common.model import permission_name
from minimq_common.wire import permission_from_wire
from minimq_common.words import count_of
from minimq_proto.v1 import broker_pb2


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
