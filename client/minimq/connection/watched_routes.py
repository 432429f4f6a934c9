"""The routes that a connection knows, and the topics that it watches."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType

from minimq_common.model import TopicRoute


class WatchedRoutes:
    """Routes by topic. Thread-safe; a route is never changed, only replaced.

    A known route is replaced by another route only, never by none: a topic whose last broker has left, or whose name
    servers are all gone, keeps the route it had. Its broker may be about to come back, and that a topic was deleted is
    for the broker to say: whoever hears that calls `forget`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._routes: dict[str, TopicRoute] = {}
        self._versions: dict[str, int] = {}
        self._deleted: set[str] = set()
        self._dropped: set[str] = set()  # watched all the same
        self._watched: dict[str, None] = {}  # a set that keeps its order
        self.known: Mapping[str, TopicRoute] = MappingProxyType(self._routes)
        self.edition = 0

    def version(self, topic: str) -> int:
        """Return how often the watch has told the route of a topic; to be read before a question is asked."""
        return self._versions.get(topic, 0)

    def versions(self) -> dict[str, int]:
        """Return how often the watch has told each route, by topic."""
        with self._lock:
            return dict(self._versions)

    def is_deleted(self, topic: str) -> bool:
        """Return whether a name server said that nobody carries a topic that was known, and that no carrier is away."""
        return topic in self._deleted

    def watched(self) -> list[str]:
        """Return the topics that are watched, in the order in which they came."""
        with self._lock:
            return list(self._watched)

    def watch(self, topic: str) -> None:
        """Watch a topic, whether it has a route or not."""
        with self._lock:
            self._add(topic)

    def drop(self, topic: str) -> None:
        """Drop the route of a topic, and watch it on: others want to hear that it was deleted, or made anew."""
        with self._lock:
            if self._routes.pop(topic, None) is not None:
                self._dropped.add(topic)

    def forget(self, topic: str) -> None:
        """Drop the route of a topic, and watch it no longer."""
        with self._lock:
            self._routes.pop(topic, None)
            self._dropped.discard(topic)
            self._versions.pop(topic, None)
            self._deleted.discard(topic)
            if topic in self._watched:
                del self._watched[topic]
                self.edition += 1

    def put(self, route: TopicRoute, *, asked_at: int | None = None) -> tuple[TopicRoute, bool]:
        """Take a route in."""
        topic = route.topic
        with self._lock:
            if asked_at is None and topic not in self._watched:
                return route, False  # it was forgotten while this was on its way
            known = self._routes.get(topic)
            version = self._versions.get(topic, 0)
            if asked_at is None:
                self._versions[topic] = version + 1
            was_known = known is not None or topic in self._dropped
            if was_known and not route.queues and not route.away:
                self._deleted.add(topic)
            elif asked_at in (None, version):
                self._deleted.discard(topic)
            # While an answer is under way, the watch may tell something newer.
            outdated = known is not None and asked_at not in (None, version)
            if not route.queues or route == known or outdated:
                return (route if known is None else known), False
            self._routes[topic] = route
            self._dropped.discard(topic)
            self._add(topic)
            return route, True

    def _add(self, topic: str) -> None:
        if topic not in self._watched:
            self._watched[topic] = None
            self.edition += 1
