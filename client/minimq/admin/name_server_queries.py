"""Queries to all name servers, about what each of them knows. On the event loop of the connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from minimq.connection.offline_brokers import ClusterView, view_from_wire
from minimq_common.errors import DeadlineExceeded, InvalidArgument, TransportError
from minimq_common.model import BrokerData, OfflineBroker
from minimq_common.wire.convert import from_wire
from minimq_proto.v1 import nameserver_pb2

if TYPE_CHECKING:  # gRPC takes longer to load than --help
    from minimq.connection.name_servers import NameServers

#: Poll interval while a name server does not show an awaited change yet.
_LOOK_AGAIN_S = 0.01


@dataclass(frozen=True, slots=True)
class ConflictReport:
    """A broker that a name server rejected, or replaced by another, and that has not registered since.

    Attributes:
        nameserver: HOST:PORT of the name server; others may have decided differently.
        cluster: cluster of this broker.
        broker_name: its name.
        broker_id: its id.
        address: its HOST:PORT.
        holder_address: HOST:PORT of the broker that is registered under this name and id.
        reason: the reason and the remedy.
        first_at: when this was first seen.
        last_at: when this was last seen; a name server forgets it some minutes later.
        times: how often it was seen.
    """

    nameserver: str
    cluster: str
    broker_name: str
    broker_id: int
    address: str
    holder_address: str
    reason: str
    first_at: datetime
    last_at: datetime
    times: int


async def offline(servers: NameServers) -> list[OfflineBroker]:
    """Return the offline brokers, sorted by name; see `offline_everywhere`."""
    return offline_everywhere((await servers.views()).values())


async def forget(servers: NameServers, broker_name: str, timeout_s: float) -> bool:
    """Make all name servers forget a broker that is offline; return whether one knew it."""
    request = nameserver_pb2.ForgetBrokerRequest(broker_name=broker_name)
    forgotten, errors = False, list[InvalidArgument | TransportError]()
    for address in servers.addresses:
        try:
            answer = await servers.call(address, lambda stub: stub.ForgetBroker, request, timeout_s)
            forgotten |= answer.forgotten
        except (InvalidArgument, TransportError) as error:
            errors.append(error)
    for each in sorted(errors, key=lambda each: isinstance(each, TransportError)):
        if isinstance(each, TransportError):
            raise each.with_message(f"{each.message}; repeat the call when it does: it may remember {broker_name}")
        if not forgotten:
            raise each
    return forgotten


async def conflicts(servers: NameServers) -> list[ConflictReport]:
    """Return the recently rejected or replaced brokers of each responding name server, sorted."""
    reports = [
        from_wire(ConflictReport, conflict, nameserver=address)
        for address, answer in (await servers.clusters()).items()
        for conflict in answer.conflicts
    ]
    return sorted(reports, key=lambda report: (report.broker_name, report.address, report.nameserver))


async def wait_until_shown(servers: NameServers, lack: Callable[[ClusterView], str | None], timeout_s: float) -> None:
    """Wait until `lack`, which returns what is missing, returns None for every reachable name server."""
    import asyncio  # keeps the start of commands fast

    deadline = time.monotonic() + timeout_s
    for address in servers.addresses:
        while (missing := await _lack_of(servers, address, lack)) is not None:
            if time.monotonic() >= deadline:
                raise DeadlineExceeded(
                    f"the brokers have done it, but name server {address} lags {timeout_s} s behind: {missing}"
                )
            await asyncio.sleep(_LOOK_AGAIN_S)


async def _lack_of(servers: NameServers, address: str, lack: Callable[[ClusterView], str | None]) -> str | None:
    try:
        return lack(view_from_wire(await servers.cluster_of(address)))
    except TransportError:
        return None


def offline_everywhere(views: Iterable[ClusterView]) -> list[OfflineBroker]:
    """Return the offline brokers, sorted by name: in at least one view, and complete in none."""
    views = tuple(views)
    whole = {name for view in views for name in _names(view.brokers) - _names(view.offline)}
    latest: dict[str, OfflineBroker] = {}
    for offline in (offline for view in views for offline in view.offline if offline.broker_name not in whole):
        known = latest.get(offline.broker_name)
        if known is None or known.since < offline.since:
            latest[offline.broker_name] = offline
    return [latest[name] for name in sorted(latest)]


def _names(brokers: Iterable[BrokerData | OfflineBroker]) -> set[str]:
    return {broker.broker_name for broker in brokers}
