"""What one name server knows of the brokers at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from minimq_common.model import BrokerData
from minimq_common.wire import broker_from_wire
from minimq_proto.v1 import nameserver_pb2


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The brokers that are registered with one name server.

    Attributes:
        brokers: sorted by name.
        versions: data version by broker name and id; the routes of the name server show every change up to these.
        settled: False when the name server has just started, so that brokers may be missing which run.
    """

    brokers: tuple[BrokerData, ...]
    versions: Mapping[tuple[str, int], int]
    settled: bool


def view_from_wire(message: nameserver_pb2.GetClusterResponse) -> ClusterView:
    """Return the value for what a name server tells."""
    return ClusterView(
        brokers=tuple(broker_from_wire(broker) for broker in message.brokers),
        versions={(item.broker_name, item.broker_id): item.data_version for item in message.versions},
        settled=message.settled,
    )


def merge(views: Iterable[ClusterView]) -> list[BrokerData]:
    """Return what several name servers know together, sorted by broker name; what the first ones say goes first."""
    known: dict[str, BrokerData] = {}
    for view in views:
        for broker in view.brokers:
            other = known.get(broker.broker_name)
            addresses = {**broker.addresses, **(other.addresses if other else {})}
            known[broker.broker_name] = BrokerData(broker.cluster, broker.broker_name, dict(sorted(addresses.items())))
    return [known[name] for name in sorted(known)]
