"""Where the queues of a topic are: asked of the name servers, kept, and kept up to date."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import grpc

from minimq.routes.nameserver_link import NameServerLinks
from minimq.routes.retries import with_retries
from minimq.routes.route_refresher import RouteRefresher
from minimq.transport.home_process import HomeProcess
from minimq_common import rpc
from minimq_common.errors import Closed, InvalidArgument, SystemBusy, TopicNotFound, TopicUnavailable, TransportError
from minimq_common.model import TopicRoute
from minimq_common.names import check_topic
from minimq_common.outage_log import OutageLog
from minimq_common.wire import route_from_wire
from minimq_proto.v1 import nameserver_pb2

log = logging.getLogger(__name__)

_NOT_WATCHED = "routes: not watched, trying again nameserver=%s reason=%s"

T = TypeVar("T")

_CLOSED = "the client was closed"

#: Waits between two tries to open the watch stream, in seconds.
_FIRST_RETRY_S = 0.1
_LONGEST_RETRY_S = 1.0
#: Least time for a question, in seconds, however little of the patience is left.
_SHORTEST_S = 0.2
#: Topics that are watched at most, as name servers have it; further ones are asked for at each poll.
_MOST_WATCHED = 20_000
#: Time for a question in the background, in seconds: of two name servers, one that hangs gets half of it.
_SOON_S = 2.0


class RouteCache:
    """Routes by topic, as the name servers tell them.

    A route is fetched when it is first asked for. Once it is found one thread watches the topic, so that a change
    arrives within milliseconds; every `poll_s` seconds the watch begins anew and brings every route again, in case a
    change got lost on the way. Should the watch itself be lost, another thread asks for the routes in its place. A name
    server that does not answer, be it a question or the pings on the watch, is left at once for the next one. A topic
    that is not found leaves nothing behind.

    A known route is replaced by another route only, never by none: a topic whose last broker has left, or whose name
    servers are all gone, keeps the route it had. Its broker may be about to come back, and that a topic was deleted is
    for the broker to say: whoever hears that calls `forget`.

    Thread-safe. Not fork-safe: a process that forks makes its caches afterwards.
    """

    def __init__(self, nameservers: Sequence[str], *, timeout_s: float = 5.0, poll_s: float = 30.0) -> None:
        """Prepare; no connection is made before the first question.

        Args:
            nameservers: HOST:PORT of each. All of them are asked before a question counts as failed.
            timeout_s: seconds that one question may take, all tries together.
            poll_s: seconds after which the watch begins anew.

        Raises:
            InvalidArgument: there is no address, or one is not HOST:PORT.
        """
        self._nameservers = NameServerLinks(nameservers, timeout_s)
        self._timeout_s = timeout_s
        self._poll_s = poll_s
        self._refresher = RouteRefresher(
            lambda topic: self._refresh(topic, min(_SOON_S, timeout_s)), self._neglected, poll_s
        )
        self._process = HomeProcess("client")
        # Protects everything below. No call is made and no callback run while it is held.
        self._lock = threading.Lock()
        self._routes: dict[str, TopicRoute] = {}  # read without the lock: a value is never changed, only replaced
        self._versions: dict[str, int] = {}  # how often a topic's route was told by the watch
        self._topics = _WatchedTopics()
        self._deleted: set[str] = set()  # known topics that have no broker any more
        self._callbacks: tuple[Callable[[TopicRoute], None], ...] = ()
        self._watch: threading.Thread | None = None
        self._stream: grpc.Call | None = None  # of the watch, and whose it is
        self._watched = ""
        self._sound_at = math.inf  # when a watch last brought every route
        self._outage = OutageLog(log)
        self._closed = threading.Event()

    def route(self, topic: str, timeout_s: float | None = None) -> TopicRoute:
        """Return the route of a topic, asking only when it is not known.

        Args:
            topic: its name.
            timeout_s: seconds that the question may take, if not those of the constructor.

        Raises:
            TopicNotFound: no broker carries it; the text says how to create it.
            TopicUnavailable: all brokers that carry it are away, or none is registered.
            SystemBusy: the name servers have just started and their brokers are not back yet.
            Unavailable: no name server answered; the text lists each with the reason.
            InvalidArgument: the name cannot be that of a topic.
            Closed: the cache was closed.
        """
        self._check_open()
        return self._routes.get(topic) or self._refresh(topic, timeout_s)

    def patiently(self, attempt: Callable[[float], T], patience_s: float) -> T:
        """Return what an attempt returns, which is repeated while servers are absent.

        Args:
            attempt: asks for routes; takes the seconds that its questions may take.
            patience_s: seconds after which the failure of the latest attempt is raised.

        Raises:
            MiniMQError: what the attempt raises; at once if that is not retriable.
            Closed: the cache was closed.
        """

        def wait(seconds: float) -> None:
            if self._closed.wait(seconds):
                raise Closed(_CLOSED)

        return with_retries(
            lambda left_s: attempt(min(max(left_s, _SHORTEST_S), self._timeout_s)), patience_s, wait=wait
        )

    def known(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic if it is known, without asking anybody."""
        return self._routes.get(topic)

    def is_deleted(self, topic: str) -> bool:
        """Tell whether name servers say that nobody carries a topic whose route is known, and that no carrier is away.

        It may also be that they have forgotten brokers that are away, so it takes a broker to be sure.
        """
        return topic in self._deleted

    def refresh(self, topic: str) -> TopicRoute:
        """Ask for the route of a topic now. Without an answer, a route that is known stands. Raises as `route`."""
        return self._refresh(topic, None)

    def refresh_soon(self, topic: str) -> None:
        """Have the route of a topic asked for in the background, after an error that says that it is out of date.

        Returns at once, and costs little when called often: a topic is asked for once at a time, about every 100 ms at
        most. Never raises; nothing happens once the cache is closed.
        """
        self._refresher.want(topic)

    def watch(self, topic: str) -> None:
        """Follow a topic that need not exist: `on_change` tells when it has a route. Returns at once."""
        with self._lock:
            self._topics.add(check_topic(topic))
        self._begin()

    def forget(self, topic: str) -> None:
        """Drop the route of a topic that does not exist any more, as a broker says, and watch it no longer.

        The next `route` asks anew. Never raises; nothing happens when the topic is not known.
        """
        with self._lock:
            self._routes.pop(topic, None)
            self._versions.pop(topic, None)
            self._deleted.discard(topic)
            self._topics.remove(topic)

    def _refresh(self, topic: str, timeout_s: float | None) -> TopicRoute:
        self._check_open()
        check_topic(topic)
        version = self._versions.get(topic, 0)
        try:
            route = self._nameservers.route(topic, timeout_s)
        except (TopicNotFound, TopicUnavailable, SystemBusy, TransportError):
            known = self._routes.get(topic)
            if known is None:
                raise
            return known
        finally:
            self._leave_silent()
        return self._keep(route, asked_at=version)

    def on_change(self, callback: Callable[[TopicRoute], None]) -> None:
        """Call back with each route that is new or has changed.

        It runs in the thread that learned of the route, mostly one of the cache: it has to be quick. What it raises is
        logged.
        """
        with self._lock:
            self._callbacks = (*self._callbacks, callback)

    def close(self) -> None:
        """End the watch and all connections; later questions raise `Closed`. May be called twice, from any thread.

        In a fork, whose connections they are not, nothing is done.
        """
        if self._process.is_forked:
            return
        with self._lock:
            self._closed.set()
            watch = self._watch
        self._refresher.close()
        self._nameservers.close()  # which also ends the stream of the watch, and a question under way
        self._refresher.join()
        if watch is not None and watch is not threading.current_thread():
            watch.join()

    def _check_open(self) -> None:
        self._process.check()
        if self._closed.is_set():
            raise Closed(_CLOSED)

    def _keep(self, route: TopicRoute, *, asked_at: int | None = None) -> TopicRoute:
        """Put a route into the cache and return the one that is in it now.

        Args:
            route: as a name server told it.
            asked_at: for the answer to a question, the topic's version before it was asked; None for the watch.
        """
        with self._lock:
            if asked_at is None and route.topic not in self._topics:
                return route  # it was forgotten while this was on its way
            known = self._routes.get(route.topic)
            version = self._versions.get(route.topic, 0)
            if asked_at is None:
                self._versions[route.topic] = version + 1
            if known is not None and not route.queues and not route.away:
                self._deleted.add(route.topic)
            elif asked_at in (None, version):
                self._deleted.discard(route.topic)
            # While an answer is under way, the watch may tell something newer.
            outdated = known is not None and asked_at not in (None, version)
            if not route.queues or route == known or outdated:
                return route if known is None else known
            self._routes[route.topic] = route
            self._topics.add(route.topic)
            callbacks = self._callbacks
        self._begin()
        for callback in callbacks:
            try:
                callback(route)
            except Exception:
                log.exception("callback failed topic=%s", route.topic)
        return route

    # ---- The watch -------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start what keeps routes up to date, when the first one is there."""
        with self._lock:
            if self._watch is not None or self._closed.is_set():
                return
            self._sound_at = time.monotonic()
            self._watch = threading.Thread(target=self._run_watch, name="minimq-route-watch", daemon=True)
            self._watch.start()
        self._refresher.start()

    def _neglected(self) -> list[str]:
        """Return the topics that are to be asked for because the watch has not brought all of them for two polls.

        Those that are too many to be watched are always among them.
        """
        unsound = time.monotonic() - self._sound_at > 2 * self._poll_s
        return self._topics.names()[0 if unsound else _MOST_WATCHED :]

    def _run_watch(self) -> None:
        retry_s = _FIRST_RETRY_S
        while not self._closed.is_set():
            nameserver = self._nameservers.preferred()
            requests = _WatchRequests(self._topics)
            try:
                if self._follow(nameserver, requests):
                    retry_s = _FIRST_RETRY_S
                    continue
            except Closed:
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, routes have to be watched on
                if not self._closed.is_set():
                    self._outage.crashed(_NOT_WATCHED, nameserver, f"a fault of the client: {error!r}", cause=error)
            finally:
                requests.end()
            self._nameservers.avoid(nameserver)
            retry_s = _FIRST_RETRY_S if requests.events else min(2 * retry_s, _LONGEST_RETRY_S)
            self._closed.wait(retry_s)

    def _follow(self, nameserver: str, requests: _WatchRequests) -> bool:
        """Take in what one stream of the watch tells until it ends; return whether it ended in good order."""
        try:
            for event in self._open_watch(nameserver, requests):
                requests.events += 1
                self._outage.worked("routes: watched nameserver=%s", nameserver)
                self._keep(route_from_wire(event.route))
        except InvalidArgument as error:
            self._outage.failed(_NOT_WATCHED, nameserver, f"it tells what cannot be: {error.message}")
        except grpc.RpcError as error:
            code, details = rpc.status_of(error)
            # A stream that lived to its deadline and had something to say was in order: that was the poll.
            if code is grpc.StatusCode.DEADLINE_EXCEEDED and (requests.events or not self._topics):
                self._sound_at = time.monotonic()
                return True
            if not self._closed.is_set():
                self._outage.failed(_NOT_WATCHED, nameserver, rpc.why_unreached(details), kind=str(code))
        return False

    def _open_watch(self, nameserver: str, requests: _WatchRequests) -> Iterator[nameserver_pb2.RouteEvent]:
        stub = self._nameservers.to(nameserver).stub
        with self._nameservers.unless_closed():
            stream = stub.WatchRoutes(requests, timeout=self._poll_s)
        with self._lock:
            self._stream, self._watched = stream, nameserver
        self._leave_silent()  # it may have been found silent a moment ago
        return stream

    def _leave_silent(self) -> None:
        """End the stream of the watch, so that it begins anew, when its name server gave no answer to a question."""
        preferred = self._nameservers.preferred()
        with self._lock:
            stream = self._stream if self._watched != preferred else None
        if stream is not None:
            stream.cancel()


class _WatchedTopics:
    """The topics that are watched. Thread-safe."""

    def __init__(self) -> None:
        self.changed = threading.Condition()  # protects all below, and `ended` of their readers
        self.edition = 0  # grows with every change
        self._names: dict[str, None] = {}  # a set that keeps its order

    def __contains__(self, topic: str) -> bool:
        return topic in self._names

    def __len__(self) -> int:
        return len(self._names)

    def names(self) -> list[str]:
        return list(self._names)

    def add(self, topic: str) -> None:
        with self.changed:
            if topic not in self._names:
                self._names[topic] = None
                self._tell()

    def remove(self, topic: str) -> None:
        with self.changed:
            if topic in self._names:
                del self._names[topic]
                self._tell()

    def _tell(self) -> None:
        self.edition += 1
        self.changed.notify_all()


class _WatchRequests:
    """The requests of one watch stream: all topics at once, and again when they are others.

    gRPC reads them in a thread of its own, which lasts until the iterator ends: `end` has to be called.
    """

    def __init__(self, topics: _WatchedTopics) -> None:
        self.events = 0  # answers so far
        self._topics = topics
        self._sent: int | None = None  # edition of the topics
        self._ended = False

    def __iter__(self) -> Iterator[nameserver_pb2.WatchRoutesRequest]:
        return self

    def __next__(self) -> nameserver_pb2.WatchRoutesRequest:
        topics = self._topics
        with topics.changed:
            topics.changed.wait_for(lambda: self._ended or topics.edition != self._sent)
            if self._ended:
                raise StopIteration
            self._sent = topics.edition
            return nameserver_pb2.WatchRoutesRequest(topics=topics.names()[:_MOST_WATCHED])

    def end(self) -> None:
        with self._topics.changed:
            self._ended = True
            self._topics.changed.notify_all()
