"""The clients that watch routes: their topics, and which of these have changed."""

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

#: Retry delay for a client that is rejected because of a limit.
_BUSY_RETRY_S = 5.0


class Watcher:
    """One watching client."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self._news: dict[str, None] = {}  # an ordered set
        self._wake = asyncio.Event()

    def add_news(self, topic: str) -> None:
        self._news[topic] = None
        self._wake.set()

    def end(self, topic: str) -> None:
        self.topics.discard(topic)
        self._news.pop(topic, None)

    async def take(self) -> str:
        """Remove and return the first queued topic; waits for one."""
        while not self._news:
            self._wake.clear()
            await self._wake.wait()
        topic = next(iter(self._news))
        del self._news[topic]
        return topic


class Watchers:
    """All watching clients of a name server. Belongs to its event loop."""

    def __init__(self) -> None:
        self._all: set[Watcher] = set()
        self._by_topic: dict[str, set[Watcher]] = {}
        #: Number of watched topics; a topic that ten clients watch counts ten times.
        self.watched = 0

    def __len__(self) -> int:
        return len(self._all)

    def add(self, watcher: Watcher) -> None:
        """Add a watcher. Raises `SystemBusy` if there are too many."""
        if len(self._all) >= MAX_WATCHERS:
            raise SystemBusy(f"{MAX_WATCHERS} clients watch routes, which is the limit", retry_after_s=_BUSY_RETRY_S)
        self._all.add(watcher)

    def remove(self, watcher: Watcher) -> None:
        self._all.discard(watcher)
        for topic in [*watcher.topics]:
            self._drop(watcher, topic)

    async def follow(self, watcher: Watcher, request: WatchRoutesRequest) -> None:
        """Replace the topics of a watcher, and queue those that are new to it. Raises `SystemBusy` at the limit."""
        if len(request.topics) > MAX_WATCHED:
            raise InvalidArgument(f"a client watches more than {MAX_WATCHED} topics, which is the limit")
        check_bounds(request)
        caller = current_caller()
        wanted: dict[str, None] = {}
        async for part in slices(request.topics):
            for topic in part:
                check_topic(topic)
                if caller.sees_all or caller.allows(Need(Verb.DESCRIBE, Resource.TOPIC, topic)):
                    wanted[topic] = None  # silently ignores the others: a look-up reports the error
        added = wanted.keys() - watcher.topics
        if self.watched + len(added) > MAX_WATCHED_BY_ALL:
            raise SystemBusy(
                f"clients watch {self.watched} topics, and the limit is {MAX_WATCHED_BY_ALL}: poll the routes of "
                "these topics instead",
                retry_after_s=_BUSY_RETRY_S,
            )
        for topic in watcher.topics - wanted.keys():
            self._drop(watcher, topic)
        new = [topic for topic in wanted if topic in added]
        self.watched += len(added)  # now: others check the limit between two slices
        try:
            async for names in slices(new):
                for topic in names:
                    self._by_topic.setdefault(topic, set()).add(watcher)
                    watcher.topics.add(topic)
                    watcher.add_news(topic)
                added.difference_update(names)
        finally:
            self.watched -= len(added)

    def publish(self, topics: Collection[str]) -> None:
        """Queue these topics for all who watch them, because their routes have changed."""
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
