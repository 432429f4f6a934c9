"""The description that a broker registers of itself, and the part of routes that is about its name. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from minimq_common.errors import InvalidArgument
from minimq_common.model import BrokerData, Permission, QueueData
from minimq_common.names import check_address, check_broker, check_cluster


@dataclass(frozen=True, slots=True)
class BrokerState:
    """Everything one broker tells about itself."""

    cluster: str
    broker_name: str
    #: 0 for the master, larger for a slave.
    broker_id: int
    address: str
    data_version: int
    #: What may be done with all of its topics.
    permission: Permission
    #: Queue data by topic; checked by who reads them, since there may be many. Never changed afterwards.
    topics: Mapping[str, QueueData]

    def __post_init__(self) -> None:
        check_cluster(self.cluster)
        check_broker(self.broker_name)
        check_address(self.address)
        if self.broker_id < 0:
            raise InvalidArgument(f"broker id {self.broker_id} of {self.broker_name}: it must not be negative")

    def __str__(self) -> str:
        return f"{self.broker_name} (id {self.broker_id}) at {self.address}"


@dataclass(frozen=True, slots=True)
class RouteFact:
    """The topics and addresses of one broker name, as routes have them. Nobody changes it, a new one is made."""

    topics: Mapping[str, QueueData]
    broker: BrokerData


def changed_topics(before: Mapping[str, QueueData], after: Mapping[str, QueueData]) -> set[str]:
    """Return the topics of which something else is said than before."""
    return {topic for topic, data in after.items() if (known := before.get(topic)) is not data and known != data}


def restrict(topics: Mapping[str, QueueData], allowed: Permission) -> Mapping[str, QueueData]:
    """Return topics of which no more may be done than is allowed."""
    if allowed == Permission.READ_WRITE:
        return topics
    return {topic: _restrict_one(data, allowed) for topic, data in topics.items()}


@functools.lru_cache(maxsize=1 << 12)
def _restrict_one(data: QueueData, allowed: Permission) -> QueueData:
    return replace(data, permission=data.permission & allowed)
