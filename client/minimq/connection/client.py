"""One client's use of a cluster: blocking and awaitable calls, which end when that client closes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar, TypeVarTuple, Unpack

from minimq.connection.cluster import Cluster
from minimq.connection.connection import BrokerMethod, Connection
from minimq.connection.fork_guard import check_may_wait
from minimq.connection.loop_thread import CLOSED, LoopCallQueue, set_outcome
from minimq.connection.master_calls import tried
from minimq.connection.name_servers import DEFAULT_TIMEOUT_S, NameServers
from minimq.connection.retry_schedule import RECONNECT_S
from minimq.connection.routes import RouteCallback
from minimq_common.errors import Closed, InvalidArgument, MinimqError, Unavailable
from minimq_common.model import TopicRoute
from minimq_common.names import check_topic
from minimq_common.security.credentials import CredentialsArgument

Key = TypeVar("Key", bound=Hashable)
Request = TypeVar("Request")
Response = TypeVar("Response")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ClusterClient:
    """Runs the calls of one client on the connection of its cluster. Thread-safe."""

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        credentials: CredentialsArgument | None = None,
    ) -> None:
        self._shares = isinstance(nameserver, Cluster)
        if isinstance(nameserver, Cluster):
            if credentials is not None:
                raise InvalidArgument("a Cluster has credentials of its own: give them to the Cluster")
            self.cluster = nameserver
        else:
            self.cluster = Cluster(nameserver, credentials=credentials).leave_to_client()
        self.connection = self.cluster.connection
        self.timeout_s = timeout_s
        self.nameservers: NameServers = self.connection.nameservers
        self.routes = RouteCache(self, self.connection)
        self._closed = threading.Event()
        self._user_loop: LoopCallQueue | None = None
        #: Running calls; owned by the event loop.
        self.under_way: set[LoopCall[Any]] = set()

    def wait(self, make: Callable[[], Awaitable[T]]) -> T:
        """Call `make` on the event loop of the connection, and block until what it returns is done.

        `make` returns a coroutine, or a future of that loop. Ctrl-C ends the wait, and cancels the call.
        """
        check_may_wait()
        ended: SimpleQueue[asyncio.Future[T]] = SimpleQueue()
        call = self._start(make, ended.put)
        try:
            future = ended.get()
        except BaseException:  # such as Ctrl-C
            call.cancel()
            raise
        return _outcome(future)

    async def result(self, make: Callable[[], Awaitable[T]], *, cancels: bool = False) -> T:
        """Like `wait`, for a task of another loop. If that is cancelled, the call continues unless `cancels` is set."""
        loop = self.user_loop()
        ended: asyncio.Future[asyncio.Future[T]] = loop.loop.create_future()
        call = self._start(make, partial(loop.call, set_outcome, ended))
        try:
            return _outcome(await ended)
        except asyncio.CancelledError:
            if cancels:
                call.cancel()
            raise

    def run(self, function: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> T:
        """Call a non-blocking function on the event loop, and block until it returns."""

        async def call() -> T:
            return function(*arguments)

        return self.wait(call)

    def user_loop(self) -> LoopCallQueue:
        """Return a call queue of the running event loop, for calls from other threads."""
        loop = asyncio.get_running_loop()
        if self._user_loop is None or self._user_loop.loop is not loop:
            self._user_loop = LoopCallQueue(loop)
        return self._user_loop

    def _start(self, make: Callable[[], Awaitable[T]], ended: Callable[[asyncio.Future[T]], object]) -> LoopCall[T]:
        self.check_open()
        call = LoopCall(self, make, ended)
        if not self.connection.call_soon(call.begin):
            raise Closed(CLOSED)
        return call

    def call_all(
        self,
        addresses: Mapping[Key, str],
        method: BrokerMethod[Request, Response],
        request: Request | Mapping[Key, Request],
        *,
        timeout_s: float | None = None,
        reconnect_s: float = RECONNECT_S,
    ) -> tuple[dict[Key, Response], dict[Key, MinimqError]]:
        """Make the same call to many brokers concurrently; see `BrokerCalls.call_all`."""
        requests = request if isinstance(request, Mapping) else dict.fromkeys(addresses, request)
        if not requests:
            return {}, {}
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        return self.wait(
            lambda: self.connection.brokers.call_all(addresses, method, requests, limit_s, min(reconnect_s, limit_s))
        )

    def pause(self, seconds: float) -> None:
        """Sleep. Raises `Closed` as soon as the client is closed."""
        if self._closed.wait(seconds):
            raise Closed(CLOSED)

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def check_open(self) -> None:
        """Raise `Closed` after `close`, and in a fork."""
        self.connection.check_open()
        if self._closed.is_set():
            raise Closed(CLOSED)

    def close(self) -> None:
        """Cancel running calls; close the connection unless it is shared. Idempotent; does nothing in a fork."""
        if self.connection.is_void:
            return
        self._closed.set()
        if self.under_way:
            self.connection.call_soon(self._cancel_calls)
        self.routes.close()
        if not self._shares:
            self.cluster.close()

    def _cancel_calls(self) -> None:
        for call in [*self.under_way]:
            call.cancel_now()


class LoopCall(Generic[T]):
    """One call of a client on the event loop of its connection."""

    _future: asyncio.Future[T] | None = None

    def __init__(
        self, client: ClusterClient, make: Callable[[], Awaitable[T]], ended: Callable[[asyncio.Future[T]], object]
    ) -> None:
        self._client, self._make, self._ended = client, make, ended

    def begin(self) -> None:
        try:
            self._future = asyncio.ensure_future(self._make())
        except Exception as error:  # noqa: BLE001 - for the caller, who waits for it
            self._future = asyncio.get_running_loop().create_future()
            self._future.set_exception(error)
        self._client.under_way.add(self)
        self._client.connection.awaited.add(self._future)
        self._future.add_done_callback(self._end)
        if self._client.is_closed:  # closed before this ran
            self._future.cancel()

    def cancel(self) -> None:
        """Cancel the call, without waiting for its end. Thread-safe."""
        self._client.connection.call_soon(self.cancel_now)

    def cancel_now(self) -> None:
        if self._future is not None:
            self._future.cancel()

    def _end(self, future: asyncio.Future[T]) -> None:
        # Not at the end of the coroutine: a caller that then drops the client must hold its last reference.
        self._client.under_way.discard(self)
        self._client.connection.awaited.discard(future)
        if not future.cancelled():
            future.exception()  # a caller that was cancelled does not retrieve it, which asyncio would log
        self._ended(future)


def _outcome(ended: asyncio.Future[T]) -> T:
    if ended.cancelled():
        raise Closed(f"{CLOSED} while a call was under way")
    try:
        return ended.result()
    finally:
        del ended  # breaks the cycle: the traceback of an error holds this frame


class RouteCache:
    """The routes that one client uses. Thread-safe."""

    def __init__(self, client: ClusterClient, connection: Connection) -> None:
        self._client = client
        self._routes = connection.routes
        self._call_soon = connection.call_soon
        #: Known routes by topic, and the topics that this client uses: these stay watched.
        self.by_topic = connection.routes.known
        self.used: set[str] = set()
        self.is_deleted, self.refresh_soon = self._routes.is_deleted, self._routes.refresh_soon
        self._callbacks: list[RouteCallback] = []
        self._closed = False

    def route(self, topic: str, timeout_s: float | None = None) -> TopicRoute:
        """Return the route of a topic; query a name server only if it is not known. Blocks."""
        self._client.check_open()
        return self.known(topic) or self._client.wait(lambda: self.find(topic, timeout_s))

    async def find(self, topic: str, timeout_s: float | None = None) -> TopicRoute:
        """Like `route`, on the event loop of the connection."""
        route = await self._routes.route(topic, self._client.timeout_s if timeout_s is None else timeout_s)
        self._use(topic)
        return route

    async def find_within(self, topic: str, timeout_s: float) -> TopicRoute:
        """Like `find`; retry for `timeout_s` seconds while servers are unavailable."""
        return await tried(lambda left_s: self.find(topic, min(left_s, self._client.timeout_s)), timeout_s)

    def refresh(self, topic: str) -> TopicRoute:
        """Fetch the route of a topic; blocks. See `Routes.refresh`."""
        route = self._client.wait(lambda: self._routes.refresh(topic, self._client.timeout_s))
        self._use(topic)
        return route

    def known(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic if it is known, without I/O."""
        route = self.by_topic.get(topic)
        if route is not None and topic not in self.used:
            self._use(topic)
        return route

    def learn(self, route: TopicRoute) -> None:
        self._client.run(self._routes.learn, route)
        self._use(route.topic)

    def watch(self, topic: str) -> None:
        """Watch a topic that need not exist: callbacks of `on_change` get its routes. Does not block."""
        self._use(check_topic(topic))

    def forget(self, topic: str) -> None:
        """Drop the route of a deleted topic; see `Routes.gone`."""
        self.used.discard(topic)
        if self._client.connection.is_loop_thread:
            self._routes.gone(topic, self)
        else:
            self._client.run(self._routes.gone, topic, self)

    def on_change(self, callback: RouteCallback) -> None:
        """Call a function with each new route until `close`; see `Routes.callbacks`."""
        self._callbacks.append(callback)
        self._routes.callbacks.append(callback)

    def close(self) -> None:
        """Remove the callbacks, and unwatch topics that no other client uses."""
        while self._callbacks:
            self._routes.callbacks.remove(self._callbacks.pop())
        self._closed = True
        if self.used:
            self.used.clear()
            self._call_soon(self._routes.leave, self)

    def _use(self, topic: str) -> None:
        if topic not in self.used and not self._closed:
            self.used.add(topic)
            self._call_soon(self._use_now, topic)

    def _use_now(self, topic: str) -> None:
        if not self._closed:
            self._routes.use(topic, self)


class RoutedMaster(NamedTuple):
    """The master of a broker by the route of a topic; refreshes the route after errors that call for it."""

    client: ClusterClient
    topic: str
    broker_name: str

    async def find(self, limit_s: float) -> str:
        """See `Master.find`. On the event loop. Also raises as `RouteCache.find`."""
        routes = self.client.routes
        route = routes.known(self.topic) or await routes.find(self.topic, min(limit_s, self.client.timeout_s))
        address = route.master_of(self.broker_name)
        if address is None:
            raise Unavailable(f"no name server knows a master of broker {self.broker_name} now")
        return address

    def failed(self, address: str, error: MinimqError) -> None:
        """Report the failure to `BrokerHealth`, and refresh the route if the error calls for it."""
        if address:
            self.client.connection.health.failed(address, error)
        if error.refresh_route:
            self.client.routes.refresh_soon(self.topic)
