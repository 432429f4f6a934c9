"""The compaction settings of a topic."""

from __future__ import annotations

import msgspec

from minimq_broker.features.compaction import NAME
from minimq_broker.state.facts import Topic


class TopicCompaction(msgspec.Struct, frozen=True):
    """Times are in ms."""

    #: Younger messages are not compacted yet.
    min_lag_ms: int
    #: How long a tombstone is kept after its first compaction.
    tombstone_ms: int
    #: Compaction starts when this share of the stored bytes has not been compacted yet.
    dirty_percent: int


def compacted(topic: Topic, key_queues: int, rules: TopicCompaction) -> Topic:
    """Return a topic that is compacted: only the latest message of each key is kept."""
    settings = {**topic.settings, NAME: msgspec.structs.asdict(rules)}
    return msgspec.structs.replace(topic, key_queues=key_queues, lasting=True, settings=settings)


def compaction_of(topic: Topic) -> TopicCompaction | None:
    """Return the settings of a topic, None if it is not compacted."""
    return TopicCompaction(**topic.settings[NAME]) if NAME in topic.settings else None
