"""Routes of topics: fetched from the name servers, cached, and kept up to date by a watch."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from types import MappingProxyType

import grpc
import grpc.aio

from minimq.connection.loop_thread import LoopThread
from minimq.connection.name_servers import DEFAULT_TIMEOUT_S, NameServers
from minimq.connection.retry_schedule import longer
from minimq_common.errors import (
    InvalidArgument,
    MinimqError,
    NotAuthenticated,
    SystemBusy,
    TopicNotFound,
    TopicUnavailable,
    TransportError,
)
from minimq_common.model import TopicRoute
from minimq_common.names import check_topic
from minimq_common.retry_log import RetryLog
from minimq_common.wire import rpc
from minimq_common.wire.convert import route_from_wire
from minimq_proto.v1 import nameserver_pb2

log = logging.getLogger(__name__)

_NOT_WATCHED = "routes: not watched, trying again nameserver=%s reason=%s"

#: Most topics in one watch, a limit of name servers. Further topics are polled.
MAX_WATCHED = 20_000

_Stream = grpc.aio.StreamStreamCall[nameserver_pb2.WatchRoutesRequest, nameserver_pb2.RouteEvent]

#: Called with a new or changed route.
RouteCallback = Callable[[TopicRoute], None]
#: Timeout of a background refresh, divided among the name servers: a hung one leaves time for the next.
_REFRESH_S = 2.0
#: Between two background refreshes of one topic.
_MIN_REFRESH_INTERVAL_S = 0.1


class RouteWatch:
    """Streams route changes of all watched topics from one name server; changes to another if that fails."""

    def __init__(
        self,
        nameservers: NameServers,
        watched: Callable[[], list[str]],
        keep: Callable[[TopicRoute], object],
        poll_s: float,
    ) -> None:
        self._nameservers = nameservers
        self._topics = watched
        self._keep = keep
        self._poll_s = poll_s
        self.topics_changed = asyncio.Event()
        self._stream: _Stream | None = None
        self._watched = ""  # address of the name server of the stream
        self._events = 0  # events of the current stream
        self._sound_at = math.inf
        self._outage = RetryLog(log)

    @property
    def is_sound(self) -> bool:
        """False if no complete set of routes has arrived for two poll intervals."""
        return time.monotonic() - self._sound_at <= 2 * self._poll_s

    def restart_if_unanswered(self) -> None:
        """Restart the stream at the preferred name server, if a query without an answer has changed that."""
        if self._stream is not None and self._watched != self._nameservers.preferred:
            self._stream.cancel()

    async def run(self) -> None:
        self._sound_at = time.monotonic()
        pause_s = 0.0
        while True:
            nameserver = self._nameservers.preferred
            self._events = 0
            rejected_s: float | None = 0.0
            try:
                rejected_s = await self._follow(nameserver)
            except Exception as error:  # noqa: BLE001 - the watch must go on
                self._outage.crashed(_NOT_WATCHED, nameserver, f"a fault of the client: {error!r}", cause=error)
            if rejected_s is None:
                pause_s = 0.0
                continue
            self._nameservers.avoid(nameserver)
            pause_s = longer(0.0 if self._events else pause_s)
            await asyncio.sleep(max(pause_s, rejected_s))

    async def _follow(self, nameserver: str) -> float | None:
        """Watch until the stream ends. Return None if its planned time was over, else the minimum pause in seconds."""
        stub = self._nameservers.stub(nameserver)
        stream = self._open(nameserver)
        requests = asyncio.create_task(self._send_topics(stream))
        try:
            async for event in stream:
                self._events += 1
                self._outage.worked("routes: watched nameserver=%s", nameserver)
                self._keep(route_from_wire(event.route))
        except InvalidArgument as error:
            self._outage.failed(_NOT_WATCHED, nameserver, f"it sent an invalid route: {error.message}")
        except grpc.aio.AioRpcError as error:
            code, details = rpc.status_of(error)
            # The stream reached its deadline and has sent routes: all is well, reopen it for a fresh set.
            if code is grpc.StatusCode.DEADLINE_EXCEEDED and (self._events or not self._topics()):
                self._sound_at = time.monotonic()
                return None
            self._outage.failed(_NOT_WATCHED, nameserver, rpc.why_unreached(details), kind=str(code))
            rejection = rpc.from_rpc_error(error, nameserver)
            if isinstance(rejection, NotAuthenticated) and self._nameservers.has_new_key(nameserver, stub):
                return 0.0
            return rejection.retry_after_s
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            self._outage.failed(_NOT_WATCHED, nameserver, "it did not answer a query")  # by `restart_if_unanswered`
        finally:
            self._stream = None
            stream.cancel()
            requests.cancel()
            await asyncio.gather(requests, return_exceptions=True)
        return 0.0

    def _open(self, nameserver: str) -> _Stream:
        stream = self._nameservers.stub(nameserver).WatchRoutes(timeout=self._poll_s)
        self._stream, self._watched = stream, nameserver
        self.restart_if_unanswered()  # a query may have failed since `run` chose this name server
        return stream

    async def _send_topics(self, stream: _Stream) -> None:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the stream has ended: `_follow` handles it
            while True:
                self.topics_changed.clear()
                topics = self._topics()[:MAX_WATCHED]
                await stream.write(nameserver_pb2.WatchRoutesRequest(topics=topics))
                await self.topics_changed.wait()


def _is_cancelled() -> bool:
    # A function, so that no frame in the error's traceback holds the task: that cycle would keep the channel open.
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class Routes:
    """The routes of a connection, and the topics that it watches.

    The first look-up fetches a route. From then on the topic is watched, so changes arrive within milliseconds. Every
    `poll_s` seconds the watch is reopened, which sends all routes again in case a change was lost. Without a working
    watch, routes are polled. A topic that is not found is not stored.

    A known route is replaced only by another route. If the last broker of a topic leaves, or all name servers fail, the
    old route stays: the broker may come back. Only a broker can say that a topic was deleted; its caller calls `gone`.

    Everything runs on the event loop of the connection, except: any thread may read `known`, change `callbacks`, and
    call `is_deleted` and `refresh_soon`.
    """

    def __init__(self, loop: LoopThread, nameservers: NameServers, poll_s: float) -> None:
        self._loop = loop
        self._nameservers = nameservers
        self._poll_s = poll_s
        self._watch = RouteWatch(nameservers, self.watched, self._keep, poll_s)
        self._routes: dict[str, TopicRoute] = {}
        #: By topic; routes are replaced, never mutated.
        self.known: Mapping[str, TopicRoute] = MappingProxyType(self._routes)
        #: Number of watch events by topic.
        self._versions: dict[str, int] = {}
        self._deleted: set[str] = set()
        self._dropped: set[str] = set()  # route dropped by `gone`, but still watched
        #: The clients that use a topic; these topics are watched, in the order in which they were added.
        self._users: dict[str, set[Hashable]] = {}
        #: Called with each new route, on the event loop: they must be quick. Their exceptions are logged.
        self.callbacks: list[RouteCallback] = []
        #: Topics to refresh in the background, and the tasks that do it.
        self._wanted: set[str] = set()
        self._refreshing: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()  # one background refresh at a time
        self._tasks: list[asyncio.Task[None]] = []  # the watch, and the poll

    # ---- by any thread --------------------------------------------------------------------------

    def is_deleted(self, topic: str) -> bool:
        """Return whether a name server says that no broker, present or offline, has a topic that was known."""
        return topic in self._deleted

    def refresh_soon(self, topic: str) -> None:
        """Refresh a route in the background, at most every 100 ms. Does not block, never raises."""
        if topic not in self._wanted:
            self._wanted.add(topic)
            self._loop.call_soon(self._begin_refresh, topic)

    # ---- on the event loop ----------------------------------------------------------------------

    def watched(self) -> list[str]:
        """Return the watched topics, in the order in which they were added."""
        return list(self._users)

    async def route(self, topic: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> TopicRoute:
        """Return the route of a topic; query a name server only if it is not known."""
        return self.known.get(topic) or await self.refresh(topic, timeout_s)

    async def refresh(self, topic: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> TopicRoute:
        """Fetch the route of a topic. Without one from a name server, return the known route. Raises as `route`."""
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
            self._watch.restart_if_unanswered()
        return self._keep(route, asked_at=version)

    def learn(self, route: TopicRoute) -> None:
        """Store a route that another process has found, unless one is known."""
        if route.topic not in self.known:
            self._keep(route, asked_at=self._versions.get(route.topic, 0))

    def use(self, topic: str, user: Hashable) -> None:
        """Watch a topic, which need not exist, until all its users have called `leave`."""
        if (users := self._users.get(topic)) is not None:
            users.add(user)
            return
        self._users[topic] = {user}
        self._watch.topics_changed.set()
        if not self._tasks:
            self._tasks += map(asyncio.create_task, (self._watch.run(), self._poll()))

    def leave(self, user: Hashable) -> None:
        """Drop and unwatch the topics that no client but this one uses."""
        for topic, users in [*self._users.items()]:
            users.discard(user)
            if not users:
                self._forget(topic)

    def gone(self, topic: str, user: Hashable) -> None:
        """Drop the route of a deleted topic. It stays watched if other clients use it, so that these notice, too."""
        users = self._users.get(topic, set())
        users.discard(user)
        if not users:
            self._forget(topic)
        elif self._routes.pop(topic, None) is not None:
            self._dropped.add(topic)

    def ended(self) -> None:
        """Drop the ended tasks: they keep calls alive, and so channels."""
        self._tasks.clear()

    def _forget(self, topic: str) -> None:
        for known in (self._routes, self._versions):
            known.pop(topic, None)
        self._dropped.discard(topic)
        self._deleted.discard(topic)
        if self._users.pop(topic, None) is not None:
            self._watch.topics_changed.set()

    def _keep(self, route: TopicRoute, *, asked_at: int | None = None) -> TopicRoute:
        """Store a route unless outdated; return the valid one. `asked_at`: version at the query; None for the watch."""
        topic = route.topic
        if asked_at is None and topic not in self._users:
            return route  # the topic was dropped while this event was in flight
        known = self._routes.get(topic)
        version = self._versions.get(topic, 0)
        if asked_at is None:
            self._versions[topic] = version + 1
        was_known = known is not None or topic in self._dropped
        # The watch may have sent a newer route while the query was in flight.
        is_outdated = asked_at not in (None, version)
        if was_known and not route.queues and not route.offline:
            self._deleted.add(topic)
        elif not is_outdated:
            self._deleted.discard(topic)
        is_same = known is not None and route == known and route.run == known.run
        if not route.queues or is_same or (known is not None and is_outdated):
            return route if known is None else known
        self._routes[topic] = route
        self._dropped.discard(topic)
        self._announce(route)
        return route

    def _announce(self, route: TopicRoute) -> None:
        for callback in [*self.callbacks]:
            try:
                callback(route)
            except Exception:
                log.exception("callback failed topic=%s", route.topic)

    # ---- in the background ----------------------------------------------------------------------

    def _begin_refresh(self, topic: str) -> None:
        if topic not in self._refreshing:
            self._refreshing[topic] = asyncio.create_task(self._refresh_wanted(topic))

    async def _refresh_wanted(self, topic: str) -> None:
        # Repeats if it is wanted again meanwhile: the answer may be older than the latest wish.
        try:
            while topic in self._wanted:
                async with self._turn:
                    self._wanted.discard(topic)
                    await self._refresh_once(topic)
                await asyncio.sleep(_MIN_REFRESH_INTERVAL_S)
        finally:
            del self._refreshing[topic]

    async def _refresh_once(self, topic: str) -> None:
        try:
            await self.refresh(topic, _REFRESH_S)
        except MinimqError as error:
            log.debug("route not refreshed topic=%s reason=%s", topic, error.message)
        except Exception:
            log.exception("route not refreshed topic=%s", topic)
        if topic not in self._users:  # its last user left meanwhile
            self._forget(topic)

    async def _poll(self) -> None:
        # All topics if the watch is broken, else only those that exceed its limit.
        while True:
            await asyncio.sleep(self._poll_s)
            for topic in self.watched()[MAX_WATCHED if self._watch.is_sound else 0 :]:
                self.refresh_soon(topic)
