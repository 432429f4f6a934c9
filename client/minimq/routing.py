"""Where the queues of a topic are: asked of the name servers, kept, and kept up to date."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import grpc

from minimq_common import rpc
from minimq_common.errors import (
    Closed,
    InvalidArgument,
    MiniMQError,
    SystemBusy,
    TopicNotFound,
    TransportError,
    Unavailable,
)
from minimq_common.model import BrokerData, TopicRoute
from minimq_common.names import check_address, check_topic
from minimq_common.wire import broker_from_wire, route_from_wire
from minimq_proto.v1 import nameserver_pb2, nameserver_pb2_grpc

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Waits between two tries to open the watch stream, in seconds.
_FIRST_RETRY_S = 0.1
_LONGEST_RETRY_S = 1.0


class RouteCache:
    """Routes by topic, as the name servers tell them.

    A route is fetched when it is first asked for. From then on one thread watches the topic, so that a change arrives
    within milliseconds; every `poll_s` seconds the watch begins anew and brings every route again, in case a change
    got lost on the way.

    A known route is replaced by another route only, never by none: a topic whose last broker has left, or whose name
    servers are all gone, keeps the route it had. Its broker may be about to come back, and that a topic was deleted is
    for the broker to say.

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
        self._nameservers = _NameServers(nameservers, timeout_s)
        self._poll_s = poll_s
        # Protects everything below. No call is made and no callback run while it is held.
        self._lock = threading.Lock()
        self._routes: dict[str, TopicRoute] = {}  # read without the lock: a value is never changed, only replaced
        self._versions: dict[str, int] = {}  # how often a topic's route was told by the watch
        self._topics = _WatchedTopics()
        self._callbacks: tuple[Callable[[TopicRoute], None], ...] = ()
        self._watch: threading.Thread | None = None
        self._closed = threading.Event()

    def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic, asking only when it is not known.

        Raises:
            TopicNotFound: no broker carries it; the text says how to create it.
            SystemBusy: the name servers have just started and their brokers are not back yet.
            Unavailable: no name server answered; the text lists each with the reason.
            InvalidArgument: the name cannot be that of a topic.
            Closed: the cache was closed.
        """
        self._check_open()
        return self._routes.get(topic) or self.refresh(topic)

    def known(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic if it is known, without asking anybody."""
        return self._routes.get(topic)

    def refresh(self, topic: str) -> TopicRoute:
        """Ask for the route of a topic now. Without an answer, a route that is known stands. Raises as `route`."""
        self._check_open()
        check_topic(topic)
        self._follow(topic)
        version = self._versions.get(topic, 0)
        try:
            request = nameserver_pb2.GetRouteRequest(topic=topic)
            answer = self._nameservers.ask(lambda stub, timeout_s: stub.GetRoute(request, timeout=timeout_s))
        except (TopicNotFound, SystemBusy, TransportError):
            known = self._routes.get(topic)
            if known is None:
                raise
            return known
        return self._keep(route_from_wire(answer.route), asked_at=version)

    def topics(self) -> list[TopicRoute]:
        """Ask for the routes of all topics, sorted by topic. Raises `Unavailable` and `Closed` as `route` does."""
        self._check_open()
        request = nameserver_pb2.ListTopicsRequest()
        answer = self._nameservers.ask(lambda stub, timeout_s: stub.ListTopics(request, timeout=timeout_s))
        return [route_from_wire(route) for route in answer.routes]

    def cluster(self) -> list[BrokerData]:
        """Ask for all brokers, sorted by name. Raises `Unavailable` and `Closed` as `route` does."""
        self._check_open()
        request = nameserver_pb2.GetClusterRequest()
        answer = self._nameservers.ask(lambda stub, timeout_s: stub.GetCluster(request, timeout=timeout_s))
        return [broker_from_wire(broker) for broker in answer.brokers]

    def on_change(self, callback: Callable[[TopicRoute], None]) -> None:
        """Call back with each route that is new or has changed.

        It runs in the thread that learned of the route, often that of the watch: it has to be quick. What it raises is
        logged.
        """
        with self._lock:
            self._callbacks = (*self._callbacks, callback)

    def close(self) -> None:
        """End the watch and all connections; later questions raise `Closed`. May be called twice, from any thread."""
        with self._lock:
            self._closed.set()
            watch = self._watch
        self._nameservers.close()  # which also ends the stream of the watch
        if watch is not None and watch is not threading.current_thread():
            watch.join()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise Closed("the client was closed")

    def _keep(self, route: TopicRoute, *, asked_at: int | None = None) -> TopicRoute:
        """Put a route into the cache and return the one that is in it now.

        Args:
            route: as a name server told it.
            asked_at: for the answer to a question, the topic's version before it was asked; None for the watch.
        """
        with self._lock:
            known = self._routes.get(route.topic)
            version = self._versions.get(route.topic, 0)
            if asked_at is None:
                self._versions[route.topic] = version + 1
            # While an answer is under way, the watch may tell something newer.
            outdated = known is not None and asked_at not in (None, version)
            if not route.queues or route == known or outdated:
                return route if known is None else known
            self._routes[route.topic] = route
            callbacks = self._callbacks
        for callback in callbacks:
            try:
                callback(route)
            except Exception:
                log.exception("callback failed topic=%s", route.topic)
        return route

    # ---- The watch -------------------------------------------------------------------------------

    def _follow(self, topic: str) -> None:
        self._topics.add(topic)
        with self._lock:
            if self._watch is None and not self._closed.is_set():
                self._watch = threading.Thread(target=self._run_watch, name="minimq-route-watch", daemon=True)
                self._watch.start()

    def _run_watch(self) -> None:
        retry_s = _FIRST_RETRY_S
        while not self._closed.is_set():
            nameserver = self._nameservers.preferred()
            requests = _WatchRequests(self._topics)
            events = 0
            try:
                for event in self._open_watch(nameserver, requests):
                    events += 1
                    self._keep(route_from_wire(event.route))
            except grpc.RpcError as error:
                code, details = rpc.status_of(error)
                # A stream that lived to its deadline and had something to say was in order: that was the poll.
                if events and code is grpc.StatusCode.DEADLINE_EXCEEDED:
                    retry_s = _FIRST_RETRY_S
                    continue
                log.debug("watch ended nameserver=%s reason=%s", nameserver, details)
            except Closed:
                return
            finally:
                requests.end()
            self._nameservers.avoid(nameserver)
            retry_s = _FIRST_RETRY_S if events else min(2 * retry_s, _LONGEST_RETRY_S)
            self._closed.wait(retry_s)

    def _open_watch(self, nameserver: str, requests: _WatchRequests) -> Iterator[nameserver_pb2.RouteEvent]:
        stub = self._nameservers.stub(nameserver)
        with self._nameservers.unless_closed():
            return stub.WatchRoutes(requests, timeout=self._poll_s)


class _WatchedTopics:
    """The topics that are watched; it only ever grows. Thread-safe."""

    def __init__(self) -> None:
        self.changed = threading.Condition()  # protects the names, and `ended` of their readers
        self.names: dict[str, None] = {}  # a set that keeps its order

    def add(self, topic: str) -> None:
        with self.changed:
            if topic not in self.names:
                self.names[topic] = None
                self.changed.notify_all()


class _WatchRequests:
    """The requests of one watch stream: all topics at once, and again when there are more.

    gRPC reads them in a thread of its own, which lasts until the iterator ends: `end` has to be called.
    """

    def __init__(self, topics: _WatchedTopics) -> None:
        self._topics = topics
        self._sent = 0
        self._ended = False

    def __iter__(self) -> Iterator[nameserver_pb2.WatchRoutesRequest]:
        return self

    def __next__(self) -> nameserver_pb2.WatchRoutesRequest:
        names = self._topics.names
        with self._topics.changed:
            self._topics.changed.wait_for(lambda: self._ended or len(names) > self._sent)
            if self._ended:
                raise StopIteration
            self._sent = len(names)
            return nameserver_pb2.WatchRoutesRequest(topics=list(names))

    def end(self) -> None:
        with self._topics.changed:
            self._ended = True
            self._topics.changed.notify_all()


class _NameServers:
    """The channels to the name servers, and which of them is asked first. Thread-safe."""

    def __init__(self, addresses: Sequence[str], timeout_s: float) -> None:
        if not addresses:
            raise InvalidArgument("no name server is given: pass the address of at least one, HOST:PORT")
        self._addresses = tuple(dict.fromkeys(check_address(address) for address in addresses))
        self._timeout_s = timeout_s
        self._closed = threading.Event()
        self._lock = threading.Lock()  # protects all below
        self._preferred = random.choice(self._addresses)  # so that the clients spread over the name servers
        self._channels: dict[str, grpc.Channel] = {}

    def preferred(self) -> str:
        """Return the address that answered last."""
        with self._lock:
            return self._preferred

    def avoid(self, address: str) -> None:
        """Prefer the next one, if it is this one that is preferred."""
        with self._lock:
            if self._preferred == address:
                index = self._addresses.index(address) + 1
                self._preferred = self._addresses[index % len(self._addresses)]

    def stub(self, address: str) -> nameserver_pb2_grpc.NameServerStub:
        """Return what calls are made with. Raises `Closed`."""
        with self._lock:
            if self._closed.is_set():
                raise Closed("the client was closed")
            if address not in self._channels:
                self._channels[address] = rpc.open_channel(address)
            return nameserver_pb2_grpc.NameServerStub(self._channels[address])

    @contextlib.contextmanager
    def unless_closed(self) -> Iterator[None]:
        """Raise `Closed` for what gRPC raises when the channel of a call was closed a moment ago."""
        try:
            yield
        except ValueError:
            if self._closed.is_set():
                raise Closed("the client was closed") from None
            raise

    def ask(self, call: Callable[[nameserver_pb2_grpc.NameServerStub, float], T]) -> T:
        """Make a call to one name server after the other, until one answers it.

        Also a refusal is no reason to ask no further: name servers do not know of each other, and a topic that is
        unknown to one may have reached another.

        Args:
            call: takes what to call, and how many seconds the call may take.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            refusal: MiniMQError | None = None
            silent: dict[str, str] = {}
            untried = self._in_order()
            while untried:
                # An equal share of what is left, so that one that hangs leaves time for the others.
                share_s = max(0.001, (deadline - time.monotonic()) / len(untried))
                address = untried.pop(0)
                try:
                    with self.unless_closed():
                        answer = call(self.stub(address), share_s)
                except grpc.RpcError as failure:
                    error = self._meaning_of(failure, address)
                    if isinstance(error, TransportError):
                        silent[address] = _why_silent(failure, share_s)
                    elif refusal is None or isinstance(error, SystemBusy):
                        refusal = error
                else:
                    self._prefer(address)
                    return answer
            if refusal is None:
                raise _nobody_answers({address: silent[address] for address in self._addresses})
            if not isinstance(refusal, SystemBusy) or time.monotonic() + refusal.retry_after_s >= deadline:
                raise refusal
            self._closed.wait(refusal.retry_after_s)

    def close(self) -> None:
        """Close all channels; calls under way end with `Closed`. May be called twice."""
        with self._lock:
            self._closed.set()
            channels = list(self._channels.values())
        for channel in channels:
            channel.close()

    def _in_order(self) -> list[str]:
        first = self._addresses.index(self.preferred())
        return [*self._addresses[first:], *self._addresses[:first]]

    def _prefer(self, address: str) -> None:
        with self._lock:
            self._preferred = address

    def _meaning_of(self, failure: grpc.RpcError, address: str) -> MiniMQError:
        if self._closed.is_set():
            raise Closed("the client was closed while a call was under way") from None
        return rpc.from_rpc_error(failure, f"name server {address}")


def _why_silent(failure: grpc.RpcError, waited_s: float) -> str:
    code, details = rpc.status_of(failure)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {waited_s:.1f} s"
    return rpc.why_unreached(details)


def _nobody_answers(silent: Mapping[str, str]) -> Unavailable:
    """Name each address with the reason, and the remedy."""
    start = f"start one with `minimq-nameserver --listen {next(iter(silent))}`, or check the address"
    if len(silent) > 1:
        tried = "; ".join(f"{address}: {reason}" for address, reason in silent.items())
        return Unavailable(f"none of {len(silent)} name servers answers ({tried}): {start}")
    [(address, reason)] = silent.items()
    if reason == rpc.NOTHING_LISTENS:
        return Unavailable(f"no name server listening at {address}: {start}")
    return Unavailable(f"the name server at {address} does not answer ({reason}): {start}")
