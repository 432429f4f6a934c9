"""Takes messages from the brokers of some topics: from one after the other, or from all at once while none has any."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, NamedTuple

from minimq.connection.client import ClusterClient
from minimq.features.work_queues.taken_messages import TakeResult
from minimq_common.errors import MinimqError, TopicNotFound, Unavailable
from minimq_common.model import Permission

#: A slow broker is asked last for this long.
_SLOW_S = 2.0
#: How long to wait for one broker alone, while others may have messages.
_QUICK_S = 0.25
#: Minimum timeout of a route lookup, even in a shorter `receive`: the first one opens connections.
LOOK_UP_S = 2.0
#: While a broker is offline, maximum time of one wait at the other brokers.
_LOOK_S = 2.0


class TopicOnBroker(NamedTuple):
    topic: str
    broker_name: str
    address: str


class TakeRequest(NamedTuple):
    most: int
    invisible_ms: int
    #: When the caller stops waiting, by the monotonic clock, which is that of the event loop.
    until: float
    ahead: bool = False


class WorkQueueFetcher:
    """Takes messages from the first broker that has some. Lives on the event loop of the connection."""

    def __init__(
        self,
        client: ClusterClient,
        take: Callable[[TopicOnBroker, TakeRequest, float], Coroutine[Any, Any, TakeResult | None]],
        run: Callable[[Coroutine[Any, Any, TakeResult | None]], asyncio.Task[TakeResult | None]],
    ) -> None:
        self._client = client
        self._take, self._run = take, run
        self._turn = random.randrange(1 << 16)  # consumers do not all begin at the same broker
        #: By broker address, until when it is asked last, in time of the event loop.
        self._slow_until: dict[str, float] = {}
        #: By topic, until when it is rejected, in time of the event loop.
        self._rejected_until: dict[str, float] = {}

    def _in_turn(self, places: Sequence[TopicOnBroker]) -> list[TopicOnBroker]:
        """Return places in the order to ask them: round-robin, slow brokers last."""
        self._turn += 1
        turn = self._turn % max(1, len(places))
        now = asyncio.get_running_loop().time()
        return sorted(
            [*places[turn:], *places[:turn]], key=lambda place: self._slow_until.get(place.address, 0.0) > now
        )

    def _rejected(self, topic: str, error: MinimqError) -> None:
        self._rejected_until[topic] = asyncio.get_running_loop().time() + error.retry_after_s

    def rejected_s(self, topic: str) -> float:
        """Return for how many seconds a topic is still rejected; at most 0 if it may be asked for."""
        return self._rejected_until.get(topic, 0.0) - asyncio.get_running_loop().time()

    async def find(self, topics: Collection[str], until: float) -> tuple[list[TopicOnBroker], MinimqError | None]:
        """Return the places of topics, and the error if some may be missing. Raises permanent errors."""
        found, failure = list[TopicOnBroker](), None
        routes = self._client.connection.routes
        for topic in topics:
            route = self._client.routes.known(topic)
            if route is None:
                left_s = min(max(until - asyncio.get_running_loop().time(), LOOK_UP_S), self._client.timeout_s)
                try:
                    route = await routes.route(topic, left_s)
                except MinimqError as error:
                    if not error.retriable:
                        self._rejected(topic, error)
                        raise
                    failure = error
                    continue
                self._client.routes.known(topic)  # starts watching it
            for data in route.queues:
                if not (data.read_queues and data.permission & Permission.READ):
                    continue
                address = route.master_of(data.broker_name)
                if address is None:
                    failure = Unavailable(f"broker {data.broker_name} of topic {topic!r} has no master now")
                else:
                    found.append(TopicOnBroker(topic, data.broker_name, address))
        if not found and failure is None:
            failure = Unavailable(f"no broker has queues of {', '.join(topics)} that may be read")
        return found, failure

    async def first(
        self, topics: Collection[str], wanted: TakeRequest, until: float
    ) -> tuple[TakeResult | None, MinimqError | None]:
        """Return messages from the first broker that has some, and the error that may be why there are none."""
        places, failure = await self.find(topics, until)
        loop = asyncio.get_running_loop()
        if len(places) == 1:
            try:
                return await self._take(places[0], wanted, until - loop.time()), None
            except MinimqError as error:
                return None, self._tolerated(places[0], error)
        taken, answered = None, False
        silent = set[str]()  # a slow broker with many topics delays the others only once
        for place in self._in_turn(places):
            if place.address in silent:
                continue
            try:
                async with asyncio.timeout(_QUICK_S):
                    taken = await self._take(place, wanted, 0.0)
                answered = True
                if taken is not None:
                    return taken, None
            except MinimqError as error:
                failure = self._tolerated(place, error)
            except TimeoutError:  # below, all brokers are asked at once
                self._slow_until[place.address] = loop.time() + _SLOW_S
                silent.add(place.address)
        if places and not wanted.ahead and (until > loop.time() or not answered):
            wait_until = min(until, loop.time() + _LOOK_S) if failure is not None else until
            taken, other = await self._first_of_all(places, wanted, wait_until)
            failure = failure or other
        return taken, None if answered and failure is not None and failure.retriable else failure

    async def _first_of_all(
        self, places: Sequence[TopicOnBroker], wanted: TakeRequest, until: float
    ) -> tuple[TakeResult | None, MinimqError | None]:
        """Wait at all brokers at once, for the first messages; those of a second broker are returned to it.

        Once a broker has answered, it does not wait for hanging ones beyond `until`.
        """
        loop = asyncio.get_running_loop()
        wait_s = max(0.0, until - loop.time())
        tasks = {self._run(self._take(place, wanted, wait_s)): place for place in places}
        found: TakeResult | None = None
        failure: MinimqError | None = None
        answered = False
        pending: set[asyncio.Task[TakeResult | None]] = set(tasks)
        try:
            while pending and found is None:
                left_s = max(0.0, until - loop.time()) + _QUICK_S if answered else None
                done, pending = await asyncio.wait(pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                for task in done:
                    error = task.exception()
                    if isinstance(error, MinimqError):
                        failure = self._tolerated(tasks[task], error)
                    else:
                        found, answered = found or task.result(), True
        except BaseException:  # such as a permanent error of another broker: the caller will not get these messages
            if found is not None:
                found.give_back()
            raise
        finally:
            for task in tasks:
                task.cancel()
                if task.done() and not task.cancelled() and task.exception() is None:
                    other = task.result()
                    if other is not None and other is not found:
                        other.give_back()
        return found, failure

    def _tolerated(self, place: TopicOnBroker, error: MinimqError) -> MinimqError:
        if error.refresh_route:
            self._client.connection.routes.refresh_soon(place.topic)
        if not (error.retriable or isinstance(error, TopicNotFound)):
            self._rejected(place.topic, error)
            raise error
        return error
