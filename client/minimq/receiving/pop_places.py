"""The brokers at which messages of some topics are taken."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import NamedTuple

from minimq.connection.client import ClusterClient
from minimq_common.errors import MiniMQError, Unavailable


class PopPlace(NamedTuple):
    """A topic at one of its brokers."""

    topic: str
    broker_name: str
    address: str


async def find_places(
    client: ClusterClient, topics: Collection[str], until: float
) -> tuple[list[PopPlace], MiniMQError | None]:
    """Return topics at their brokers, and why some may be missing. Raises `TopicNotFound`."""
    found, failure = list[PopPlace](), None
    routes = client.connection.routes
    for topic in topics:
        route = client.routes.known(topic)
        if route is None:
            left_s = max(0.2, min(until - asyncio.get_running_loop().time(), client.timeout_s))
            try:
                route = await routes.route(topic, left_s)
            except MiniMQError as error:
                if not error.retriable:
                    raise
                failure = error
                continue
            client.routes.known(topic)  # which has it watched
        for name in dict.fromkeys(queue.broker_name for queue in route.read_queues()):
            address = route.master_of(name)
            if address is None:
                failure = Unavailable(f"broker {name} of topic {topic!r} has no master now")
            else:
                found.append(PopPlace(topic, name, address))
    if not found and failure is None:
        failure = Unavailable(f"no broker has queues of {', '.join(topics)} that may be read")
    return found, failure
