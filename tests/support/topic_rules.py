"""Rules of a topic, set in an open store."""

from __future__ import annotations

from minimq_broker.features.retention.topic_retention import with_rules
from minimq_broker.state.facts import TopicSet
from minimq_broker.state.state import State
from support.stores import OpenStore


def set_rules(store: OpenStore, name: str, *, age_ms: int = 0, size: int = 0) -> None:
    """Set the retention of a topic; 0 for that of the broker."""

    def decide(state: State) -> TopicSet:
        return TopicSet(with_rules(state.topic(name), age_ms, size))

    store.record(decide)
