"""Compaction as a feature of the broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from minimq_broker.calls.engine import Engine
from minimq_broker.features.compaction import NAME
from minimq_broker.features.compaction.compactor import Compactor
from minimq_broker.features.compaction.topic_compaction import TopicCompaction, compacted, compaction_of
from minimq_broker.features.feature import Feature, Serving
from minimq_broker.options import KernelOptions
from minimq_broker.state.facts import Topic
from minimq_common.errors import InvalidArgument
from minimq_common.text_units import count_of
from minimq_proto.v1 import broker_pb2


class CompactionServing(Serving):
    def __init__(self, engine: Engine, options: KernelOptions) -> None:
        kept_ms, interval_s = engine.clock.kept_ms, options.upkeep_interval_s
        self._task = Compactor(engine.store, engine.lowest_needed, kept_ms, interval_s=interval_s)
        self.tasks = (self._task,)

    def metrics(self, prefix: str) -> Iterator[Any]:
        from minimq_common.serving.metrics import counter  # late: only metrics need it

        text = "Messages of compacted topics that were removed: newer ones have their keys."
        yield counter(f"{prefix}_compaction_removed_messages_total", text, self._task.removed)


class Compaction(Feature):
    name = NAME
    serve = CompactionServing

    def set_topic(self, topic: Topic, former: Topic | None, request: Any) -> Topic:
        if former is not None:
            _check_change(topic, former)
            return topic
        if not request.HasField("compaction"):
            return topic
        rules = request.compaction
        if topic.fifo:
            raise InvalidArgument("a FIFO topic cannot be compacted: its messages are processed in order, all of them")
        if topic.read_queues != topic.write_queues:
            raise InvalidArgument("a compacted topic has as many read queues as write queues")
        if rules.key_queues < topic.write_queues:
            raise InvalidArgument(
                f"a compacted topic has {count_of(topic.write_queues, 'queue')} here, and {rules.key_queues} on all "
                "brokers together"
            )
        settings = TopicCompaction(rules.min_lag_ms, rules.tombstone_ms, rules.dirty_percent)
        return compacted(topic, rules.key_queues, settings)

    def describe_topic(self, topic: Topic, described: broker_pb2.Topic) -> None:
        rules = compaction_of(topic)
        if rules is not None:
            described.compaction.MergeFrom(
                broker_pb2.Compaction(key_queues=topic.key_queues, **msgspec.structs.asdict(rules))
            )


def _check_change(topic: Topic, former: Topic) -> None:
    counts = topic.read_queues, topic.write_queues
    if NAME in former.settings and counts != (former.read_queues, former.write_queues):
        raise InvalidArgument(
            f"topic {topic.name!r} is compacted, and the number of its queues decides the queue of each key: "
            "create another topic, and copy the latest messages there"
        )
