"""Selects where to read a queue: at the master of its broker, or at a slave while the master does not answer."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from minimq.connection.client import ClusterClient
from minimq.connection.connection import BrokerMethod
from minimq.connection.offline_brokers import remedy_of, state_of
from minimq_common.errors import MinimqError, TopicNotFound, Unavailable
from minimq_common.model import MASTER_ID, BrokerData, MessageQueue, TopicRoute

Request = TypeVar("Request")
Response = TypeVar("Response")


class ReadReplica(NamedTuple):
    """A master or slave from which a queue can be read."""

    broker_id: int
    address: str

    @property
    def is_master(self) -> bool:
        """True if the name servers call it the master."""
        return self.broker_id == MASTER_ID


class ReplicaSelector:
    """Orders the places to read: the master, then slaves by id; unresponsive ones last. Thread-safe."""

    def __init__(self, client: ClusterClient, *, slaves: bool = True) -> None:
        self._calls = client.connection.brokers
        self._routes = client.routes
        self._health = client.connection.health
        self._slaves = slaves

    def of(self, queue: MessageQueue) -> ReadReplica:
        """Return where to read a queue now, by its known route. Raises `Unavailable`."""
        return self._in_order(queue, self._routes.known(queue.topic))[0]

    async def call(
        self, queue: MessageQueue, method: BrokerMethod[Request, Response], request: Request, timeout_s: float
    ) -> Response:
        """Like `ask`, without the place."""
        return (await self.ask(queue, method, request, timeout_s))[0]

    async def ask(
        self, queue: MessageQueue, method: BrokerMethod[Request, Response], request: Request, timeout_s: float
    ) -> tuple[Response, ReadReplica]:
        """Send a read request about a queue to one place after the other; return the first answer, and its place."""
        failure: MinimqError | None = None
        for place in self._in_order(queue, await self._routes.find(queue.topic)):
            try:
                return await self._calls.call(place.address, method, request, timeout_s, 0), place
            except MinimqError as found:
                error = found
            self.failed(place.address, error)
            if error.refresh_route:
                self._routes.refresh_soon(queue.topic)
            if isinstance(error, TopicNotFound) and not place.is_master:
                error = Unavailable(f"a slave does not know of it yet, and no master answers: {error.message}")
            failure = failure or error
            if not error.retriable:
                break
        assert failure is not None  # there is at least one broker
        raise failure

    def failed(self, address: str, error: MinimqError | None) -> None:
        """Record that a broker failed, or ended a stream normally. One that did not answer comes last until it does."""
        if error is not None and not error.answered:  # a rejected read says nothing about sending there
            self._health.failed(address, error)

    def _in_order(self, queue: MessageQueue, route: TopicRoute | None) -> list[ReadReplica]:
        places = self._places(route.brokers.get(queue.broker_name) if route else None)
        if not places:
            raise Unavailable(_why_nowhere(queue, route))
        return sorted(places, key=lambda place: self._health.is_silent(place.address))

    def _places(self, broker: BrokerData | None) -> list[ReadReplica]:
        if broker is None:
            return []
        known = [ReadReplica(*item) for item in sorted(broker.addresses.items())]
        return known if self._slaves else [place for place in known if place.is_master]


def _why_nowhere(queue: MessageQueue, route: TopicRoute | None) -> str:
    name = queue.broker_name
    if route is not None and name in route.brokers:
        return f"broker {name} of queue {queue} has no master now, and slaves are not to be read"
    for offline in route.offline if route is not None else ():
        if offline.broker_name == name:
            return f"broker {name} of queue {queue} is {state_of(offline)}: {remedy_of(offline)}"
    return f"no broker is known that carries queue {queue}: is {name} running?"
