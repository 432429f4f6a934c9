"""Connections to name servers: to one of them, and to all, of which any is asked or each."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import grpc

from minimq.routes.away import check_route
from minimq.routes.cluster_view import ClusterView, away_everywhere, merge, view_from_wire
from minimq.routes.conflict_report import ConflictReport, conflict_from_wire
from minimq.transport.home_process import HomeProcess
from minimq_common import rpc
from minimq_common.bound_check import check_answer
from minimq_common.errors import (
    Closed,
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    MiniMQError,
    SystemBusy,
    TransportError,
    Unavailable,
)
from minimq_common.model import AwayBroker, BrokerData, TopicRoute
from minimq_common.names import check_address
from minimq_common.wire import route_from_wire
from minimq_proto.v1 import nameserver_pb2, nameserver_pb2_grpc

Request = TypeVar("Request")
Response = TypeVar("Response")
T = TypeVar("T")

_CLOSED = "the client was closed"

#: Time between two looks at a name server that does not show yet what is waited for.
_LOOK_AGAIN_S = 0.01
#: Time between two looks at one that has just started and waits for its brokers.
_BUSY_RETRY_S = 0.05
#: One that does not answer within this time is not waited for.
_ANSWER_S = 1.0

# A dict first, since of two values for one key gRPC takes the first one.
_CHANNEL_OPTIONS = {
    **dict(rpc.CHANNEL_OPTIONS),
    # A watch is silent while nothing changes: only pings tell a name server that hangs from one that has no news. One
    # that leaves a ping unanswered loses its streams, within two seconds.
    "grpc.keepalive_time_ms": 1_000,
    "grpc.keepalive_timeout_ms": 1_000,
    "grpc.http2.ping_timeout_ms": 1_000,  # by which newer versions of gRPC go
    "grpc.http2.max_pings_without_data": 0,
}


class _NoAnswerError(Exception):
    """A name server gave no answer, or none that can be; the text says why."""


class NameServerLink:
    """The connection to one name server. Thread-safe.

    Attributes:
        address: HOST:PORT.
        stub: for streams, and for calls that deal with gRPC's errors themselves.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.insecure_channel(address, options=tuple(_CHANNEL_OPTIONS.items()))
        self.stub = nameserver_pb2_grpc.NameServerStub(self._channel)

    def route(self, topic: str, timeout_s: float) -> TopicRoute:
        """Return the route as this name server has it now.

        Raises:
            TopicNotFound: it knows no broker that carries the topic.
            TopicUnavailable: all that carry the topic are away, or none is registered.
            SystemBusy: it has just started and does not know yet.
            TransportError: it does not answer.
        """
        request = nameserver_pb2.GetRouteRequest(topic=topic, knows_away=True)
        return check_route(route_from_wire(self._call(self.stub.GetRoute, request, timeout_s).route))

    def brokers(self, timeout_s: float) -> list[BrokerData]:
        """Return the brokers that are registered with this name server. Raises `TransportError`."""
        return list(self.view(timeout_s).brokers)

    def view(self, timeout_s: float) -> ClusterView:
        """Return what this name server knows of the brokers. Raises `TransportError`."""
        return view_from_wire(self._call(self.stub.GetCluster, nameserver_pb2.GetClusterRequest(), timeout_s))

    def conflicts(self, timeout_s: float) -> list[ConflictReport]:
        """Return the brokers that this name server refused or replaced lately. Raises `TransportError`."""
        answer = self._call(self.stub.GetCluster, nameserver_pb2.GetClusterRequest(), timeout_s)
        return [conflict_from_wire(self.address, conflict) for conflict in answer.conflicts]

    def forget(self, request: nameserver_pb2.ForgetBrokerRequest, timeout_s: float) -> bool:
        """Have this name server forget a broker, and return whether it remembered it; see `NameServerLinks.forget`."""
        return self._call(self.stub.ForgetBroker, request, timeout_s).forgotten

    def close(self) -> None:
        """End the connection; later calls raise `Closed`."""
        self._channel.close()

    def _call(self, method: Callable[..., Response], request: Request, timeout_s: float) -> Response:
        try:
            return check_answer(method(request, timeout=timeout_s), f"name server {self.address}")
        except grpc.RpcError as error:
            raise rpc.from_rpc_error(error, f"name server {self.address}") from None
        except ValueError:  # what gRPC raises for a closed channel
            raise Closed(_CLOSED) from None


class NameServerLinks:
    """The connections to all name servers, and which of them is asked first. Thread-safe.

    A connection is made when it is first needed.

    Args:
        addresses: HOST:PORT of each. All of them are asked before a question counts as failed.
        timeout_s: seconds that one question may take, all tries together.

    Raises:
        InvalidArgument: there is no address, or one is not HOST:PORT.
    """

    def __init__(self, addresses: Sequence[str], timeout_s: float) -> None:
        if not addresses:
            raise InvalidArgument("no name server is given: pass the address of at least one, HOST:PORT")
        self._addresses = tuple(dict.fromkeys(check_address(address) for address in addresses))
        self._timeout_s = timeout_s
        self._closed = threading.Event()
        self._process = HomeProcess("client")
        self._lock = threading.Lock()  # protects all below
        self._preferred = random.choice(self._addresses)  # so that the clients spread over the name servers
        self._links: dict[str, NameServerLink] = {}

    # ---- Questions to any of them ---------------------------------------------------------------

    def route(self, topic: str, timeout_s: float | None = None) -> TopicRoute:
        """Return the route of a topic. Takes another timeout if told to.

        Raises as `ask` does, and `TopicNotFound` and `TopicUnavailable`.
        """
        request = nameserver_pb2.GetRouteRequest(topic=topic, knows_away=True)

        def call(stub: nameserver_pb2_grpc.NameServerStub, share_s: float) -> TopicRoute:
            route = route_from_wire(stub.GetRoute(request, timeout=share_s).route)
            if route.topic != topic:
                raise InvalidArgument(f"the route of {route.topic} when asked for that of {topic}")
            return check_route(route)

        return self.ask(call, timeout_s)

    def topics(self) -> list[TopicRoute]:
        """Return the routes of all topics, sorted by topic; one whose brokers are all away has no queues.

        Raises as `ask` does.
        """
        request = nameserver_pb2.ListTopicsRequest()

        def call(stub: nameserver_pb2_grpc.NameServerStub, share_s: float) -> list[TopicRoute]:
            answer = stub.ListTopics(request, timeout=share_s)
            return [route_from_wire(route) for route in (*answer.routes, *answer.away_routes)]

        return sorted(self.ask(call), key=lambda route: route.topic)

    def topic_names(self) -> list[str]:
        """Return the names of all topics, sorted, also of those whose brokers are all away. Raises as `ask` does."""
        request = nameserver_pb2.ListTopicsRequest(names_only=True)
        answer = self.ask(lambda stub, timeout_s: stub.ListTopics(request, timeout=timeout_s))
        return sorted((*answer.names, *answer.away_names))

    def cluster(self) -> list[BrokerData]:
        """Return all brokers, sorted by name. Raises as `ask` does."""
        request = nameserver_pb2.GetClusterRequest()
        view = self.ask(lambda stub, timeout_s: view_from_wire(stub.GetCluster(request, timeout=timeout_s)))
        return list(view.brokers)

    def ask(self, call: Callable[[nameserver_pb2_grpc.NameServerStub, float], T], timeout_s: float | None = None) -> T:
        """Make a call to one name server after the other, until one answers it.

        Also a refusal is no reason to ask no further: name servers do not know of each other, and a topic that is
        unknown to one may have reached another.

        Args:
            call: takes what to call, and how many seconds the call may take; what it raises itself counts as a refusal.
            timeout_s: seconds for all tries together, if not those of the constructor.

        Raises:
            SystemBusy: the name servers have just started and their brokers are not back yet.
            Unavailable: no name server answered; the text lists each with the reason.
            Closed: the connections were closed.
            MiniMQError: another refusal.
        """
        self._process.check()
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        while True:
            refusal: MiniMQError | None = None
            silent: dict[str, str] = {}
            untried = self._in_order()
            while untried:
                # An equal share of what is left, so that one that hangs leaves time for the others.
                share_s = max(0.001, (deadline - time.monotonic()) / len(untried))
                address = untried.pop(0)
                try:
                    answer = self._ask_one(address, call, share_s)
                except _NoAnswerError as silence:
                    silent[address] = str(silence)
                except Closed:
                    raise
                except MiniMQError as error:
                    refusal = _likelier_to_pass(refusal, error)
                else:
                    if silent:
                        self._prefer(address)
                    return answer
            if refusal is None:
                raise _nobody_answers({address: silent[address] for address in self._addresses})
            if not isinstance(refusal, SystemBusy) or time.monotonic() + refusal.retry_after_s >= deadline:
                raise refusal
            self._closed.wait(refusal.retry_after_s)

    def _ask_one(
        self, address: str, call: Callable[[nameserver_pb2_grpc.NameServerStub, float], T], timeout_s: float
    ) -> T:
        try:
            with self.unless_closed():
                return call(self.to(address).stub, timeout_s)
        except grpc.RpcError as failure:
            error = self._meaning_of(failure, address)
            if isinstance(error, TransportError):
                raise _NoAnswerError(_why_silent(failure, timeout_s)) from None
            raise error from None
        except (InvalidArgument, InternalError) as error:  # of what came: a false name server, or a damaged one
            raise _NoAnswerError(f"it answers what cannot be: {error.message}") from None

    # ---- Questions to each of them --------------------------------------------------------------

    def brokers_of_all(self, *, settled: bool = False) -> list[BrokerData]:
        """Return what the name servers that answer know together, sorted by broker name; empty when none answers.

        Args:
            settled: wait until one of them has settled: one that has just started knows only the brokers that have come
                back already, which is not enough for a change that is to reach all of them.

        Raises:
            SystemBusy: none of those that answer has settled in time.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            views = self._views()
            if not settled or not views or any(view.settled for view in views.values()):
                return merge(views.values())
            if time.monotonic() >= deadline:
                raise SystemBusy(
                    f"name server {', '.join(views)} has just started and waits for its brokers: it is not known yet "
                    "which ones there are; nothing was changed, try again",
                    retry_after_s=_BUSY_RETRY_S,
                )
            self._pause(_BUSY_RETRY_S)

    def away(self) -> list[AwayBroker]:
        """Return the brokers that have gone, as the name servers that answer know together, sorted by name.

        One that is registered with any of them, with all of its topics, has not gone.
        """
        return away_everywhere(self._views().values())

    def forget(self, broker_name: str) -> bool:
        """Have every name server forget a broker that is away; return whether one remembered it.

        Raises:
            InvalidArgument: it is registered, and no name server misses a topic of it.
            TransportError: a name server does not answer, so that it may still remember it; the others were told.
        """
        request = nameserver_pb2.ForgetBrokerRequest(broker_name=broker_name)
        forgotten = False
        failure: TransportError | None = None
        refusal: InvalidArgument | None = None
        for address in self._addresses:
            try:
                forgotten |= self.to(address).forget(request, self._timeout_s)
            except InvalidArgument as error:
                refusal = error
            except TransportError as error:
                failure = error
        if refusal is not None and not forgotten:
            raise refusal
        if failure is not None:
            raise failure.with_message(
                f"{failure.message}; repeat the call when it does: it may remember {broker_name}"
            )
        return forgotten

    def _views(self) -> dict[str, ClusterView]:
        """Return what each name server that answers knows, by its address."""
        views: dict[str, ClusterView] = {}
        for address in self._addresses:
            with contextlib.suppress(TransportError):
                views[address] = self.to(address).view(_ANSWER_S)
        return views

    def conflicts(self) -> list[ConflictReport]:
        """Return the brokers that were refused or replaced lately, by each name server that answers.

        Sorted by broker name, address and name server; empty when none answers.
        """
        reports: list[ConflictReport] = []
        for address in self._addresses:
            with contextlib.suppress(TransportError):
                reports += self.to(address).conflicts(_ANSWER_S)
        return sorted(reports, key=lambda report: (report.broker_name, report.address, report.nameserver))

    def wait_until_shown(self, lack: Callable[[ClusterView], str | None], timeout_s: float) -> None:
        """Wait until every name server that answers knows what is wanted.

        Args:
            lack: takes what a name server knows, and says what is still missing.
            timeout_s: seconds for all of them together.

        Raises:
            DeadlineExceeded: the text names the name server and what it does not show.
        """
        deadline = time.monotonic() + timeout_s
        for address in self._addresses:
            link = self.to(address)
            while (missing := _lack_of(link, lack)) is not None:
                if time.monotonic() >= deadline:
                    raise DeadlineExceeded(
                        f"the brokers have done it, but name server {address} lags {timeout_s} s behind: {missing}"
                    )
                self._pause(_LOOK_AGAIN_S)

    def _pause(self, pause_s: float) -> None:
        if self._closed.wait(pause_s):
            raise Closed(_CLOSED)

    # ---- Connections ----------------------------------------------------------------------------

    def to(self, address: str) -> NameServerLink:
        """Return the connection to one of the addresses. Raises `Closed`, also in a fork."""
        self._process.check()
        with self._lock:
            if self._closed.is_set():
                raise Closed(_CLOSED)
            link = self._links.get(address)
            if link is None:
                link = self._links[address] = NameServerLink(address)
            return link

    def preferred(self) -> str:
        """Return the address that is asked first: the others are asked when it does not answer, or does not know."""
        with self._lock:
            return self._preferred

    def avoid(self, address: str) -> None:
        """Prefer the next one, if it is this one that is preferred."""
        with self._lock:
            if self._preferred == address:
                index = self._addresses.index(address) + 1
                self._preferred = self._addresses[index % len(self._addresses)]

    @contextlib.contextmanager
    def unless_closed(self) -> Iterator[None]:
        """Raise `Closed` for what gRPC raises when the channel of a call was closed a moment ago."""
        try:
            yield
        except ValueError:
            if self._closed.is_set():
                raise Closed(_CLOSED) from None
            raise

    def close(self) -> None:
        """End all connections and all waiting; calls under way end with `Closed`. Idempotent.

        In a fork, whose connections they are not, nothing is done.
        """
        if self._process.is_forked:
            return
        with self._lock:
            self._closed.set()
            links = list(self._links.values())
        for link in links:
            link.close()

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


def _lack_of(link: NameServerLink, lack: Callable[[ClusterView], str | None]) -> str | None:
    """Return what one name server does not show yet; None also when it does not answer."""
    try:
        return lack(link.view(_ANSWER_S))
    except TransportError:
        return None


def _likelier_to_pass(refusal: MiniMQError | None, other: MiniMQError) -> MiniMQError:
    """Return the one of two refusals that is more likely to be over soon."""
    if refusal is None or isinstance(other, SystemBusy) or (other.retriable and not refusal.retriable):
        return other
    return refusal


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
