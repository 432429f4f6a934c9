"""Where the queues of topics are: fetched from the name servers, cached, and kept up to date."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable

from minimq.connection.loop_thread import LoopThread
from minimq.connection.name_servers import DEFAULT_TIMEOUT_S, NameServers
from minimq.connection.route_refresher import RouteRefresher
from minimq.connection.route_watch import MOST_WATCHED, RouteWatch
from minimq.connection.watched_routes import WatchedRoutes
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
    """The routes of a connection.

    A route is fetched at its first look-up. Once it is found the topic is watched, so that a change arrives
    within milliseconds; every `poll_s` seconds the watch is reopened and sends every route again, in case a change was
    lost. If the watch itself is lost, routes are polled instead. A topic that is not found
    leaves nothing behind.

    Coroutines run on the event loop of the connection; the other methods may be called by any thread.
    """

    def __init__(self, loop: LoopThread, nameservers: NameServers, poll_s: float) -> None:
        self.table = WatchedRoutes()
        self._loop = loop
        self._nameservers = nameservers
        self._watch = RouteWatch(nameservers, self.table, self._keep, poll_s)
        self._refresher = RouteRefresher(self._refresh_used, self._neglected, poll_s)
        self._wanted: set[str] = set()  # on their way to the refresher
        self._lock = threading.Lock()  # held while the two below change; they are read without it
        self._callbacks: tuple[RouteCallback, ...] = ()
        self._users: Counter[str] = Counter()  # how many clients use a topic
        self._refreshing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def route(self, topic: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> TopicRoute:
        """Return the route of a topic, asking only when it is not known."""
        return self.table.known.get(topic) or await self.refresh(topic, timeout_s)

    async def refresh(self, topic: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> TopicRoute:
        """Fetch the route of a topic now. Without an answer, a route that is known stands. Raises as `route`."""
        check_topic(topic)
        version = self.table.version(topic)
        try:
            route = await self._nameservers.route(topic, timeout_s)
        except (TopicNotFound, TopicUnavailable, SystemBusy, TransportError):
            known = self.table.known.get(topic)
            if known is None:
                raise
            return known
        finally:
            self._watch.leave_silent()
        return self._keep(route, asked_at=version)

    def learn(self, route: TopicRoute) -> None:
        """Take a route that another process has found, unless one is known. It is watched like any other."""
        if self.table.known.get(route.topic) is None:
            self.table.put(route, asked_at=self.table.version(route.topic))
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
        self.table.watch(check_topic(topic))
        self._loop.call_soon(self._topics_changed)

    def use(self, topic: str) -> None:
        """Watch a topic until this client and all others leave it."""
        with self._lock:
            self._users[check_topic(topic)] += 1
            edition = self.table.edition
            self.table.watch(topic)
        if self.table.edition != edition:  # the last one has just left it
            self._loop.call_soon(self._topics_changed)

    def leave(self, topics: Iterable[str]) -> None:
        """Drop the routes of topics that a client has used and no other one does, and watch them no longer."""
        for topic in topics:
            with self._lock:
                self._users[topic] -= 1
                if self._users[topic] <= 0:
                    del self._users[topic]
                    self.forget(topic)

    def gone(self, topic: str, *, is_used: bool) -> None:
        """Drop the route of a topic that no longer exists, as a broker has reported to a client.

        The next `route` fetches it again. It stays watched if other clients use it, which must learn of its deletion.
        """
        with self._lock:
            if self._users[topic] > is_used:
                self.table.drop(topic)
            else:
                self.forget(topic)

    def forget(self, topic: str) -> None:
        """Drop the route of a topic, and watch it no longer.

        The next `route` fetches it again. Never raises; nothing happens when the topic is not known.
        """
        edition = self.table.edition
        self.table.forget(topic)
        if self.table.edition != edition:
            self._loop.call_soon(self._topics_changed)

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

    # ---- on the event loop ----------------------------------------------------------------------

    def _keep(self, route: TopicRoute, *, asked_at: int | None = None) -> TopicRoute:
        edition = self.table.edition
        route, is_new = self.table.put(route, asked_at=asked_at)
        if self.table.edition != edition:
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
                self.forget(topic)

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
        return self.table.watched()[MOST_WATCHED if self._watch.is_sound else 0 :]
