"""The watched topics of each watcher, and those among them whose routes have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from minimq_common.errors import InvalidArgument, SystemBusy
from minimq_common.names import check_topic
from minimq_common.security.access_rule import Need, Resource, Verb
from minimq_common.security.caller import current_caller
from minimq_common.serving.periodic import slices
from minimq_common.wire.bound_check import check_bounds
from minimq_common.wire.protocol_bounds import MAX_WATCHED
from minimq_nameserver.bounds import MAX_WATCHED_BY_ALL, MAX_WATCHERS
from minimq_proto.v1.nameserver_pb2 import WatchRoutesRequest

#: Seconds after which a client that found no place is to try again.
_BUSY_RETRY_S = 5.0


class Watcher:
    """One watching client.

    Holds names of topics and no routes: a client that reads slowly gets the latest route of each topic when it reads.
    """

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self._news: dict[str, None] = {}  # a set that keeps its order
        self._wake = asyncio.Event()

    def add_news(self, topic: str) -> None:
        """Note that a topic's route has to be sent."""
        self._news[topic] = None
        self._wake.set()

    def end(self, topic: str) -> None:
        """Watch a topic no longer."""
        self.topics.discard(topic)
        self._news.pop(topic, None)

    async def take(self) -> str:
        """Return the topic whose news has waited longest, once there is one."""
        while not self._news:
            self._wake.clear()
            await self._wake.wait()
        topic = next(iter(self._news))
        del self._news[topic]
        return topic


class Watchers:
    """All watching clients of a name server. Used on its event loop only."""

    def __init__(self) -> None:
        self._all: set[Watcher] = set()
        self._by_topic: dict[str, set[Watcher]] = {}
        #: Number of topics that are watched; one that ten clients watch counts ten times.
        self.watched = 0

    def __len__(self) -> int:
        return len(self._all)

    def add(self, watcher: Watcher) -> None:
        """Begin to tell a watcher about its topics."""
        if len(self._all) >= MAX_WATCHERS:
            raise SystemBusy(f"{MAX_WATCHERS} clients watch routes, which is the limit", retry_after_s=_BUSY_RETRY_S)
        self._all.add(watcher)

    def remove(self, watcher: Watcher) -> None:
        """Forget a watcher."""
        self._all.discard(watcher)
        for topic in [*watcher.topics]:
            self._drop(watcher, topic)

    async def follow(self, watcher: Watcher, request: WatchRoutesRequest) -> None:
        """Set what a watcher watches, as its client says. The topics that are new to it count as news."""
        if len(request.topics) > MAX_WATCHED:
            raise InvalidArgument(f"a client watches more than {MAX_WATCHED} topics, which is the limit")
        check_bounds(request)
        caller = current_caller()
        wanted: dict[str, None] = {}
        async for part in slices(request.topics):
            for topic in part:
                check_topic(topic)
                if caller.sees_all or caller.allows(Need(Verb.DESCRIBE, Resource.TOPIC, topic)):
                    wanted[topic] = None  # a look-up of any other topic gets an error
        added = wanted.keys() - watcher.topics
        if self.watched + len(added) > MAX_WATCHED_BY_ALL:
            raise SystemBusy(
                f"clients watch {self.watched} topics, and the limit is {MAX_WATCHED_BY_ALL}: poll the routes of "
                "these topics instead",
                retry_after_s=_BUSY_RETRY_S,
            )
        for topic in watcher.topics - wanted.keys():
            self._drop(watcher, topic)
        async for names in slices([topic for topic in wanted if topic in added]):
            for topic in names:
                self._by_topic.setdefault(topic, set()).add(watcher)
                watcher.topics.add(topic)
                watcher.add_news(topic)
                self.watched += 1

    def publish(self, topics: Collection[str]) -> None:
        """Tell everybody who watches one of these topics that its route has changed."""
        for topic in topics:
            for watcher in self._by_topic.get(topic, ()):
                watcher.add_news(topic)

    def _drop(self, watcher: Watcher, topic: str) -> None:
        watcher.end(topic)
        watching = self._by_topic[topic]
        watching.discard(watcher)
        if not watching:
            del self._by_topic[topic]
        self.watched -= 1
