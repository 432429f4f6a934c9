"""Brokers as name servers report them, and descriptions of those that are offline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from minimq_common.errors import TopicUnavailable
from minimq_common.model import BrokerData, OfflineBroker, TopicRoute
from minimq_common.text_units import count_of
from minimq_common.wire.convert import broker_from_wire, offline_from_wire
from minimq_proto.v1 import nameserver_pb2


def state_of(offline: OfflineBroker) -> str:
    """Return a text like "offline since 12:03:05 (stopped)", in local time, with the date unless it is today."""
    if offline.lacks_topics:
        return "online without topics that it had"
    since = offline.since.astimezone()
    is_today = since.date() == datetime.now().astimezone().date()
    stopped = " (stopped)" if offline.stopped else ""
    return f"offline since {since:{'%H:%M:%S' if is_today else '%Y-%m-%d %H:%M:%S'}}{stopped}"


def describe_offline(offline: Iterable[OfflineBroker], lacking: str) -> list[str]:
    """Return a text for each broker: "broker-a: offline since 12:03:05 (stopped), 4 queues not counted"."""
    return [f"{each.broker_name}: {state_of(each)}, {count_of(each.queues, 'queue')} {lacking}" for each in offline]


def by_broker(offline: Iterable[OfflineBroker]) -> tuple[OfflineBroker, ...]:
    """Merge the entries of several topics: each broker once, with the sum of its queues, sorted by name."""
    found: dict[str, OfflineBroker] = {}
    for each in offline:
        known = found.get(each.broker_name)
        found[each.broker_name] = replace(each, queues=each.queues + known.queues) if known else each
    return tuple(found[name] for name in sorted(found))


def check_route(route: TopicRoute) -> TopicRoute:
    """Return the route. Raises `TopicUnavailable` if all brokers of the topic are offline."""
    if route.queues or not route.offline:
        return route
    raise TopicUnavailable(
        f"topic {route.topic} cannot be reached: {say_offline(route.offline)}", offline=route.offline
    )


def say_offline(offline: Sequence[OfflineBroker]) -> str:
    """Return which brokers are offline since when, and the remedy, for an error. `offline` must not be empty."""
    states = ", ".join(f"{each.broker_name} is {state_of(each)}" for each in offline)
    forget = " and ".join(f"`minimq cluster delete-broker {each.broker_name}`" for each in offline)
    remedies = " and ".join(dict.fromkeys(map(remedy_of, offline)))
    return f"{states}; {remedies}, or, if it will not come back, delete it with {forget}"


def remedy_of(offline: OfflineBroker) -> str:
    return "restore its data directory" if offline.lacks_topics else "start it again"


@dataclass(frozen=True, slots=True)
class ClusterView:
    brokers: tuple[BrokerData, ...]
    versions: Mapping[tuple[str, int], int]
    #: False shortly after the start of the name server: running brokers may not have registered yet.
    settled: bool
    #: Brokers that have left, or came back without some of their topics, sorted by name.
    offline: tuple[OfflineBroker, ...] = ()


def view_from_wire(message: nameserver_pb2.GetClusterResponse) -> ClusterView:
    return ClusterView(
        brokers=tuple(broker_from_wire(broker) for broker in message.brokers),
        versions={(item.broker_name, item.broker_id): item.data_version for item in message.versions},
        settled=message.settled,
        offline=tuple(map(offline_from_wire, message.offline)),
    )


def merge(views: Iterable[ClusterView]) -> list[BrokerData]:
    """Merge the brokers of several name servers, sorted by name. Where they differ, the earliest view wins."""
    known: dict[str, BrokerData] = {}
    for view in views:
        for broker in view.brokers:
            first = known.get(broker.broker_name, broker)
            addresses = {**broker.addresses, **first.addresses}
            known[broker.broker_name] = replace(first, addresses=dict(sorted(addresses.items())))
    return [known[name] for name in sorted(known)]
