"""Where the queues of topics are: fetched from the name servers, cached, and kept up to date."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from minimq.connection.loop_thread import LoopThread
from minimq.connection.name_servers import DEFAULT_TIMEOUT_S, NameServers
from minimq.connection.route_refresher import RouteRefresher
from minimq.connection.route_watch import MOST_WATCHED, RouteWatch
from minimq.transport.client_log import client_logger
from minimq_common.errors import SystemBusy, TopicNotFound, TopicUnavailable, TransportError
from minimq_common.model import TopicRoute
from minimq_common.names import check_topic

log = client_logger(__name__)

#: Called with a route that is new or has changed.
RouteCallback = Callable[[TopicRoute], None]

#: Time for a question in the background, in seconds: of two name servers, one that hangs gets half of it.
_SOON_S = 2.0


class Routes:
    """The routes of a connection, and the topics that it watches.

    A route is fetched at its first look-up. Once it is found the topic is watched, so that a change arrives
    within milliseconds; every `poll_s` seconds the watch is reopened and sends every route again, in case a change was
    lost. If the watch itself is lost, routes are polled instead. A topic that is not found leaves nothing behind.

    A known route is replaced by another route only, never by none: a topic whose last broker has left, or whose name
    servers are all gone, keeps the route it had. Its broker may be about to come back, and that a topic was deleted is
    for the broker to say: whoever hears that calls `gone`.

    Coroutines run on the event loop of the connection; the other methods may be called by any thread.
    """

    def __init__(self, loop: LoopThread, nameservers: NameServers, poll_s: float) -> None:
        self._loop = loop
        self._nameservers = nameservers
        self._watch = RouteWatch(nameservers, self.watched, self._keep, poll_s)
        self._refresher = RouteRefresher(self._refresh_used, self._neglected, poll_s)
        self._wanted: set[str] = set()  # on their way to the refresher
        self._lock = threading.Lock()  # held while what follows changes; it is read without it
        self._routes: dict[str, TopicRoute] = {}
        #: By topic; a route is never changed, only replaced.
        self.known: Mapping[str, TopicRoute] = MappingProxyType(self._routes)
        #: How often the watch has told the route of a topic.
        self._versions: dict[str, int] = {}
        self._deleted: set[str] = set()
        self._dropped: set[str] = set()  # watched all the same
        self._watched: dict[str, None] = {}  # a set that keeps its order
        self._is_less = False  # than the watch knows
        self._callbacks: tuple[RouteCallback, ...] = ()
        self._users: Counter[str] = Counter()  # how many clients use a topic
        # On the event loop.
        self._refreshing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    def watched(self) -> list[str]:
        """Return the topics that are watched, in the order in which they came."""
        with self._lock:
            return list(self._watched)

    def is_deleted(self, topic: str) -> bool:
        """Tell whether a name server said that nobody carries a topic that was known, and that no carrier is away."""
        return topic in self._deleted

    async def route(self, topic: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> TopicRoute:
        """Return the route of a topic, asking only when it is not known."""
        return self.known.get(topic) or await self.refresh(topic, timeout_s)

    async def refresh(self, topic: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> TopicRoute:
        """Fetch the route of a topic now. Without an answer, a route that is known stands. Raises as `route`."""
        check_topic(topic)
        version = self._versions.get(topic, 0)
        try:
            route = await self._nameservers.route(topic, timeout_s)
        except (TopicNotFound, TopicUnavailable, SystemBusy, TransportError):
            known = self.known.get(topic)
            if known is None:
                raise
            return known
        finally:
            self._watch.leave_silent()
        return self._keep(route, asked_at=version)

    def learn(self, route: TopicRoute) -> None:
        """Take a route that another process has found, unless one is known. It is watched like any other."""
        if route.topic not in self.known:
            self._put(route, asked_at=self._versions.get(route.topic, 0))
            self._loop.call_soon(self._topics_changed)

    def refresh_soon(self, topic: str) -> None:
        """Refresh the route of a topic in the background, after an error that shows that it is out of date.

        Returns at once, and costs little when called often: a topic is looked up once at a time, about every 100 ms at
        most. Never raises; nothing happens once the connection is closed.
        """
        if topic not in self._wanted:
            self._wanted.add(topic)
            self._loop.call_soon(self._want, topic)

    def watch(self, topic: str) -> None:
        """Follow a topic that need not exist: callbacks tell when it has a route. Returns at once."""
        check_topic(topic)
        with self._lock:
            self._watched[topic] = None
        self._loop.call_soon(self._topics_changed)

    def use(self, topic: str) -> None:
        """Watch a topic until this client and all others leave it."""
        with self._lock:
            self._users[check_topic(topic)] += 1
            is_new = topic not in self._watched
            self._watched[topic] = None
        if is_new:  # the last one has just left it
            self._loop.call_soon(self._topics_changed)

    def leave(self, topics: Iterable[str]) -> None:
        """Drop the routes of topics that a client has used and no other one does, and watch them no longer."""
        with self._lock:
            for topic in topics:
                self._users[topic] -= 1
                if self._users[topic] <= 0:
                    del self._users[topic]
                    self._forget(topic)
        self._tell_watch()

    def gone(self, topic: str, *, is_used: bool) -> None:
        """Drop the route of a topic that no longer exists, as a broker has reported to a client.

        The next `route` fetches it again. It stays watched if other clients use it, which must learn of its deletion.
        """
        with self._lock:
            if self._users[topic] <= is_used:
                self._forget(topic)
            elif self._routes.pop(topic, None) is not None:
                self._dropped.add(topic)
        self._tell_watch()

    def _tell_watch(self) -> None:
        if self._is_less:
            self._is_less = False
            self._loop.call_soon(self._topics_changed)

    def _forget(self, topic: str) -> None:
        self._is_less |= topic in self._watched
        for known in (self._routes, self._versions, self._watched):
            known.pop(topic, None)
        self._dropped.discard(topic)
        self._deleted.discard(topic)

    def add_callback(self, callback: RouteCallback) -> None:
        """Call back with each route that is new or has changed, on the event loop: it has to be quick.

        What it raises is logged.
        """
        with self._lock:
            self._callbacks = (*self._callbacks, callback)

    def remove_callback(self, callback: RouteCallback) -> None:
        """Call it back no more."""
        with self._lock:
            self._callbacks = tuple(kept for kept in self._callbacks if kept is not callback)

    def _put(self, route: TopicRoute, asked_at: int | None) -> tuple[TopicRoute, bool]:
        """Take a route in; return that which is known now, and whether it is new. `asked_at` is None for the watch."""
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
            self._watched[topic] = None
            return route, True

    # ---- on the event loop ----------------------------------------------------------------------

    def _keep(self, route: TopicRoute, *, asked_at: int | None = None) -> TopicRoute:
        count = len(self._watched)
        route, is_new = self._put(route, asked_at)
        if len(self._watched) != count:
            self._topics_changed()
        for callback in self._callbacks if is_new else ():
            try:
                callback(route)
            except Exception:
                log.exception("callback failed topic=%s", route.topic)
        return route

    def ended(self) -> None:
        """Drop the tasks, which have ended: they hold calls, and with them channels."""
        self._refreshing = self._watching = None

    async def _refresh_used(self, topic: str) -> None:
        await self.refresh(topic, _SOON_S)
        with self._lock:
            if topic not in self._users:  # its last client has left it meanwhile
                self._forget(topic)
        self._tell_watch()

    def _want(self, topic: str) -> None:
        self._wanted.discard(topic)
        self._refresher.want(topic)
        self._begin_refreshing()

    def _topics_changed(self) -> None:
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch.run())
            self._begin_refreshing()
        self._watch.topics_changed()

    def _begin_refreshing(self) -> None:
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresher.run())

    def _neglected(self) -> list[str]:
        """Return the topics to poll because the watch has not sent all of them for two polls.

        Those that are too many to be watched are always among them.
        """
        return self.watched()[MOST_WATCHED if self._watch.is_sound else 0 :]
