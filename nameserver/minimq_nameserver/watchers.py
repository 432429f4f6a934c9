"""Who watches which topics, and for which of them there is news."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Watcher:
    """One watching client.

    Holds names of topics and no routes: a client that reads slowly costs no more than the list of what it watches,
    and gets the latest route of each topic when it does read.
    """

    def __init__(self) -> None:
        self.topics: frozenset[str] = frozenset()
        self._news: dict[str, None] = {}  # a set that keeps the order of arrival
        self._awake = asyncio.Event()

    def add_news(self, topic: str) -> None:
        """Note that a topic's route has to be sent."""
        self._news[topic] = None

    def drop_news(self, topic: str) -> None:
        """Forget a topic that is no longer watched."""
        self._news.pop(topic, None)

    def wake(self) -> None:
        """Let `next_topic` return news."""
        self._awake.set()

    async def next_topic(self) -> str:
        """Wait for news, and return the topic that has waited longest."""
        while not self._awake.is_set() or not self._news:
            self._awake.clear()
            await self._awake.wait()
        topic = next(iter(self._news))
        del self._news[topic]
        return topic


class Watchers:
    """All watching clients of a name server. Used on its event loop only.

    Until `release` is called nobody is told anything; the news adds up meanwhile.
    """

    def __init__(self) -> None:
        self._all: set[Watcher] = set()
        self._by_topic: dict[str, set[Watcher]] = {}
        self._held = True

    def release(self) -> None:
        """Tell everybody what has added up, and from now on whatever comes."""
        self._held = False
        for watcher in self._all:
            watcher.wake()

    def add(self, watcher: Watcher) -> None:
        """Begin to tell a watcher about its topics."""
        self._all.add(watcher)

    def remove(self, watcher: Watcher) -> None:
        """Forget a watcher."""
        self.follow(watcher, ())
        self._all.discard(watcher)

    def follow(self, watcher: Watcher, topics: Iterable[str]) -> None:
        """Set what a watcher watches. The topics that are new to it count as news."""
        wanted = frozenset(topics)
        for topic in watcher.topics - wanted:
            watcher.drop_news(topic)
            self._by_topic[topic].discard(watcher)
            if not self._by_topic[topic]:
                del self._by_topic[topic]
        added = wanted - watcher.topics
        watcher.topics = wanted
        for topic in added:
            self._by_topic.setdefault(topic, set()).add(watcher)
            self._notify(watcher, topic)

    def publish(self, topics: Iterable[str]) -> None:
        """Tell everybody who watches one of these topics that its route has changed."""
        for topic in topics:
            for watcher in self._by_topic.get(topic, ()):
                self._notify(watcher, topic)

    def _notify(self, watcher: Watcher, topic: str) -> None:
        watcher.add_news(topic)
        if not self._held:
            watcher.wake()
