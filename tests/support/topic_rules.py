"""Rules of a topic, set in an open store."""

from __future__ import annotations

import msgspec

from minimq_broker.state.facts import TopicSet
from minimq_broker.state.state import State
from support.stores import OpenStore


def set_rules(store: OpenStore, name: str, *, age_ms: int = 0, size: int = 0) -> None:
    """Set the retention of a topic; 0 for that of the broker."""

    def decide(state: State) -> TopicSet:
        changed = msgspec.structs.replace(state.topic(name), retention_ms=age_ms, retention_bytes=size)
        return TopicSet(changed)

    store.record(decide)
