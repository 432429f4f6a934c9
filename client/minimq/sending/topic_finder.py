"""Finds the routes of a producer, and asks brokers to create missing topics automatically."""

from __future__ import annotations

import asyncio
import math
from functools import partial

from minimq.admin.master_client import MasterClient, raise_failures
from minimq.connection.client import ClusterClient
from minimq.connection.master_calls import tried
from minimq.connection.retry_schedule import RECONNECT_S
from minimq.sending.chosen_queues import ChosenQueues
from minimq_common.errors import DeadlineExceeded, MinimqError, TopicNotFound, TopicUnavailable
from minimq_common.model import TopicRoute
from minimq_common.names import check_topic
from minimq_proto.v1 import broker_pb2

#: Lifetime in the cache of an error that a topic was not created.
_REJECTED_S = 1.0


class TopicFinder:
    """Finds routes on the event loop of the connection; `known` and `wait_for` are thread-safe.

    Concurrent searches for the same missing topic share one request. A rejection is cached for a second, so that sends
    to a misspelt topic do not burden the brokers. A topic that was found before, and is deleted, is not created again:
    it would get other settings.
    """

    def __init__(self, client: ClusterClient, chosen: ChosenQueues, timeout_s: float) -> None:
        self._client = client
        self._routes = client.routes
        self._chosen = chosen
        self._timeout_s = timeout_s
        self._masters = MasterClient(client)
        #: Topics that were found before.
        self._found: set[str] = set()
        #: Running requests by topic, and for a while those that were rejected.
        self._asked: dict[str, asyncio.Task[bool]] = {}

    def known(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic if it is known, including all queues of a compacted one."""
        try:
            route = self._routes.known(topic)
        except TypeError:  # unhashable, such as a list
            return None
        if route is None or not self._chosen.are_complete(route):
            return None
        self._found.add(topic)
        return route

    def wait_for(self, topic: str, *, make: bool = True) -> TopicRoute:
        """Like `find`, but blocks."""
        known = self.known(topic)
        if known is not None:
            return known
        check_topic(topic)
        return self._client.wait(lambda: self.find(topic, make=make))

    async def find(self, topic: str, *, make: bool = True, timeout_s: float = math.inf) -> TopicRoute:
        """Return the route of a topic. With `make`, brokers may create a missing topic.

        Retries while servers are unavailable, for `send_timeout_s` but no longer than `timeout_s`.
        """
        known = self.known(topic)
        if known is not None:
            return known
        attempt = partial(self._find_or_make, check_topic(topic), make)
        found = await tried(attempt, min(timeout_s, self._timeout_s))
        self._found.add(topic)
        return found

    async def _find_or_make(self, topic: str, make: bool, left_s: float) -> TopicRoute:
        timeout_s = min(left_s, self._client.timeout_s)
        is_deleted = topic in self._found
        try:
            return self._chosen.check_complete(await self._routes.find(topic, timeout_s))
        except (TopicNotFound, TopicUnavailable) as error:
            if is_deleted and not error.retriable:
                raise TopicNotFound(
                    f"topic {topic!r} was deleted while this producer used it, so it is not created automatically: "
                    f"create it with `minimq topic create {topic}`, or create another producer"
                ) from None
            if not make:  # FIFO topics are never created automatically
                if error.retriable:
                    raise
                raise TopicNotFound(
                    f"topic {topic!r} does not exist, and the message has a message group: create it with "
                    f"`minimq topic create {topic} --fifo`"
                ) from None
            absent = error
        try:
            async with asyncio.timeout(timeout_s):
                await self.create(topic, timeout_s)
        except TopicNotFound as rejection:
            raise (absent if absent.retriable else rejection) from None
        except MinimqError:  # before `TimeoutError`: a `DeadlineExceeded` is one
            raise
        except TimeoutError:
            raise DeadlineExceeded(f"topic {topic!r} was not made automatically in {timeout_s:.1f} s") from None
        return await self._routes.find(topic, timeout_s)

    async def create(self, topic: str, timeout_s: float) -> bool:
        """Ask all masters to create a topic, and wait until the name servers show it; return whether one created it.

        Each broker decides on its own, and with its own number of queues. The requests get half of the time, so that a
        hung broker leaves the other half for finding what the others have created.
        """
        is_first = check_topic(topic) not in self._asked
        if is_first:
            self._asked[topic] = asyncio.create_task(self._ask(topic, timeout_s / 2))
            self._asked[topic].add_done_callback(partial(self._end, topic))
        asked = self._asked[topic]
        await asyncio.wait([asked])  # if this is cancelled, the task continues for the other callers
        try:
            return asked.result() and is_first
        except MinimqError as error:
            raise error.with_message(error.message) from None  # a copy for each caller: tracebacks keep frames alive

    async def _ask(self, topic: str, timeout_s: float) -> bool:
        request = broker_pb2.CreateTopicRequest(topic=broker_pb2.Topic(topic=topic), if_not_exists=True, automatic=True)
        masters = await self._masters.look()
        requests, reconnect_s = dict.fromkeys(masters, request), min(RECONNECT_S, timeout_s / 2)
        answers, failures = await self._client.connection.brokers.call_all(
            masters, lambda stub: stub.CreateTopic, requests, timeout_s, reconnect_s
        )
        if not answers:
            texts = {error.message if isinstance(error, TopicNotFound) else "" for error in failures.values()}
            if len(failures) == len(masters) and len(texts) == 1 and all(texts):
                raise TopicNotFound(*texts)
            # A broker that failed may be one that creates topics: its error takes precedence over rejections.
            others = {broker: error for broker, error in failures.items() if not isinstance(error, TopicNotFound)}
            raise_failures(f"topic {topic} was not made automatically", others or failures, masters, "try again")
        await self._masters.show(answers)
        return any(answer.created for answer in answers.values())

    def _end(self, topic: str, asked: asyncio.Task[bool]) -> None:
        if not asked.cancelled() and isinstance(asked.exception(), TopicNotFound):
            asyncio.get_running_loop().call_later(_REJECTED_S, self._asked.pop, topic, None)
        else:
            del self._asked[topic]
