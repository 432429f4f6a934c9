"""The part of a route that is about one broker name. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from minimq_common.model import BrokerData, Permission, QueueData


@dataclass(frozen=True, slots=True)
class RouteFact:
    """The topics and addresses of one broker name, as routes have them. Nobody changes it, a new one is made."""

    topics: Mapping[str, QueueData]
    broker: BrokerData


def changed_topics(before: Mapping[str, QueueData], after: Mapping[str, QueueData]) -> set[str]:
    """Return the topics of which something else is said than before."""
    # Equal queue data is mostly the same object, and the topics of a broker have few: so thousands of topics are
    # compared in some milliseconds.
    differ: dict[tuple[int, int], bool] = {}
    changed = set()
    for topic, data in after.items():
        known = before.get(topic)
        if known is data:
            continue
        pair = id(known), id(data)
        if pair not in differ:
            differ[pair] = known != data
        if differ[pair]:
            changed.add(topic)
    return changed


def restrict(topics: Mapping[str, QueueData], allowed: Permission) -> Mapping[str, QueueData]:
    """Return topics of which no more may be done than is allowed."""
    if allowed == Permission.READ_WRITE:
        return topics
    distinct = {id(data): data for data in topics.values()}  # few: most topics share theirs
    restricted = {key: _restrict_one(data, allowed) for key, data in distinct.items()}
    return {topic: restricted[id(data)] for topic, data in topics.items()}


@functools.lru_cache(maxsize=1 << 12)
def _restrict_one(data: QueueData, allowed: Permission) -> QueueData:
    return replace(data, permission=data.permission & allowed)
