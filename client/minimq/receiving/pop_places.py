"""The brokers at which messages of some topics are taken."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from typing import NamedTuple

from minimq.connection.client import ClusterClient
from minimq_common.errors import MiniMQError, Unavailable

#: A broker that was slow comes last for so long, in seconds; and it is waited for that long at most.
_SLOW_S = 2.0
#: For so long one broker is asked alone at first, in seconds, while others may have messages.
QUICK_S = 0.25


class PopPlace(NamedTuple):
    """A topic at one of its brokers."""

    topic: str
    broker_name: str
    address: str


class PopPlaces:
    """The places of a consumer, in turn. Lives on the event loop of the connection."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._turn = random.randrange(1 << 16)  # consumers do not all begin at the same broker
        #: Until when a broker comes last, by the event loop.
        self._slow_until: dict[str, float] = {}
        #: For how long a broker that was slow is asked alone.
        self._patience_s: dict[str, float] = {}

    def in_turn(self, places: Sequence[PopPlace]) -> list[PopPlace]:
        """Return places in the order in which they are asked: each time another one first, and slow brokers last."""
        self._turn += 1
        turn = self._turn % max(1, len(places))
        now = asyncio.get_running_loop().time()
        return sorted(
            [*places[turn:], *places[:turn]], key=lambda place: self._slow_until.get(place.address, 0.0) > now
        )

    def patience_s(self, place: PopPlace) -> float:
        """Return for how many seconds a broker is asked alone."""
        return self._patience_s.get(place.address, QUICK_S)

    def comes_last(self, place: PopPlace) -> None:
        """Let a broker come last for a while, since it has kept others waiting, and be waited for longer.

        What comes too late goes back, which is more work for a broker that has too much. Without more patience
        consumers could keep it busy with that alone, and never get a message.
        """
        self._slow_until[place.address] = asyncio.get_running_loop().time() + _SLOW_S
        self._patience_s[place.address] = min(2 * self.patience_s(place), _SLOW_S)

    def answered(self, place: PopPlace, took_s: float) -> None:
        """Note that a broker has answered after so many seconds."""
        if took_s < QUICK_S:
            self._patience_s.pop(place.address, None)

    async def find(self, topics: Collection[str], until: float) -> tuple[list[PopPlace], MiniMQError | None]:
        """Return topics at their brokers, and why some may be missing. Raises `TopicNotFound`."""
        found, failure = list[PopPlace](), None
        routes = self._client.connection.routes
        for topic in topics:
            route = self._client.routes.known(topic)
            if route is None:
                left_s = max(0.2, min(until - asyncio.get_running_loop().time(), self._client.timeout_s))
                try:
                    route = await routes.route(topic, left_s)
                except MiniMQError as error:
                    if not error.retriable:
                        raise
                    failure = error
                    continue
                self._client.routes.known(topic)  # which has it watched
            for name in dict.fromkeys(queue.broker_name for queue in route.read_queues()):
                address = route.master_of(name)
                if address is None:
                    failure = Unavailable(f"broker {name} of topic {topic!r} has no master now")
                else:
                    found.append(PopPlace(topic, name, address))
        if not found and failure is None:
            failure = Unavailable(f"no broker has queues of {', '.join(topics)} that may be read")
        return found, failure
