"""The gRPC face of the name server: messages in, the route table, messages out."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc.aio

from minimq_common import connections, rpc
from minimq_common.errors import (
    BrokerConflict,
    InvalidArgument,
    MiniMQError,
    SystemBusy,
    TopicNotFound,
    TopicUnavailable,
    Unavailable,
)
from minimq_common.log_handler import ALWAYS_WRITTEN
from minimq_common.names import check_broker, check_topic
from minimq_common.security.access_exchange import exchange
from minimq_common.security.access_rule import Resource
from minimq_common.security.caller import current_caller
from minimq_common.security.shared_access import SharedAccess
from minimq_common.unsent import SMALL_BYTES, Unsent
from minimq_common.wire import broker_to_wire
from minimq_nameserver.away import RememberedBroker
from minimq_nameserver.bounds import MAX_UNSENT_BYTES
from minimq_nameserver.broker_state import BrokerState
from minimq_nameserver.conflicts import Conflict
from minimq_nameserver.counters import CallCounters
from minimq_nameserver.listing import TopicLists
from minimq_nameserver.loop_share import LoopShare
from minimq_nameserver.registration_reader import RegistrationReader
from minimq_nameserver.route_event_writer import RouteEventWriter
from minimq_nameserver.route_events import RouteEvents
from minimq_nameserver.route_table import Change, RouteTable
from minimq_nameserver.table_tidying import TableTidying
from minimq_nameserver.watchers import Watcher, Watchers
from minimq_proto.v1 import nameserver_pb2, nameserver_pb2_grpc

log = logging.getLogger(__name__)

#: What a client is asked to wait before it asks again while brokers are coming back.
_BUSY_RETRY_S = 0.1
_STOPPING = "the name server stops"
#: So fast gRPC takes an answer over, while everybody else waits.
_COPIED_BYTES_PER_S = 400 << 20


class NameServerService(nameserver_pb2_grpc.NameServerServicer):
    """Answers brokers and clients out of one route table. Everything runs on one event loop, so nothing is locked.

    It begins *unsettled*: brokers that ran before this name server did are on their way back, one by one. Until
    `settle` is called an unknown topic is a reason to ask again, and watchers are told nothing, since what they would
    be told is that most brokers are gone.
    """

    def __init__(self, table: RouteTable, clock: Callable[[], float]) -> None:
        self._table = table
        self._clock = clock
        #: What the clock shows, and the time of day at that moment: what is told of a moment never changes.
        self._began = clock(), time.time()
        self._events = RouteEvents(table, self._away_to_wire)
        self._tidying = TableTidying(table)
        self._lists = TopicLists(table, self._events, self._tidying)
        self._cluster: tuple[int, bytes] | None = None  # the brokers of that edition of the table
        self._unsent = Unsent(MAX_UNSENT_BYTES)
        self._writer = RouteEventWriter(lambda topic: self._events.get(topic).encoded, self._unsent)
        self._watchers = Watchers(self._writer.ready)
        self._settled = False
        self._session_ids = itertools.count(1)
        self._streams: dict[int, asyncio.Task[object]] = {}
        self._reasons: dict[int, str] = {}  # why a stream is being ended by this side
        self._watches: set[asyncio.Task[object]] = set()
        self._access: SharedAccess | None = None
        self._access_streams: set[asyncio.Task[object]] = set()
        self._reader = RegistrationReader()
        # Of the table, by registrations with many topics, and by others: hundreds of those may come at once.
        self._changes, self._brief_changes = LoopShare(), LoopShare()
        self._handing_out = LoopShare()
        self._stopping = False
        self.counters = CallCounters()

    # What metrics show: any thread may ask.

    @property
    def settled(self) -> bool:
        """True if a topic that is not in the table does not exist."""
        return self._settled

    def registered(self) -> list[BrokerState]:
        """Return what every broker told that is registered."""
        return self._table.registered()

    @property
    def topics(self) -> int:
        """Number of topics that have a route."""
        return len(self._table.known_topics())

    @property
    def conflicts(self) -> int:
        """Number of brokers whose place another one has."""
        return len(self._table.conflicts(self._clock()))

    def away(self) -> list[RememberedBroker]:
        """Return the brokers that have gone."""
        return self._table.away()

    @property
    def watchers(self) -> int:
        """Number of clients that watch routes."""
        return len(self._watches)

    @property
    def watched_topics(self) -> int:
        """Number of topics that they watch; one that ten clients watch counts ten times."""
        return self._watchers.watched

    @property
    def unsent(self) -> Unsent:
        """Large routes and lists that clients have not taken yet."""
        return self._unsent

    def note_conflict(self, refused: BrokerState, holder: BrokerState, conflict: BrokerConflict) -> None:
        """Remember a broker that the controller in this name server refuses."""
        self._table.note_conflict(refused, holder, conflict.message, self._clock())
        log.log(
            logging.DEBUG if self._was_told(conflict) else logging.WARNING, "report refused reason=%r", conflict.message
        )

    def settle(self) -> None:
        """From now on, what is not in the table does not exist."""
        self._settled = True
        if self._access is not None:
            self._access.settle()
        self._watchers.release()

    def expire(self) -> None:
        """Remove the brokers that have been silent for too long, and end their streams."""
        self._carry_out(self._table.expire(self._clock()))

    def end_streams(self) -> None:
        """Tell every stream that this name server stops; watchers get no news of brokers that leave because of it."""
        self._stopping = True
        for session, task in self._streams.items():
            self._reasons[session] = _STOPPING
            task.cancel()
        for task in (*self._watches, *self._access_streams):
            task.cancel()

    def share_access(self, shared: SharedAccess) -> None:
        """Tell brokers from now on of users and rules, and take theirs."""
        self._access = shared

    # ---- Brokers ---------------------------------------------------------------------------------

    async def Register(  # type: ignore[override]  # grpc.aio also takes a coroutine that writes by itself
        self,
        request_iterator: AsyncIterator[nameserver_pb2.RegisterRequest | bytes],
        context: grpc.aio.ServicerContext[nameserver_pb2.RegisterRequest, nameserver_pb2.RegisterResponse],
    ) -> None:
        """Keep a broker in the table for as long as its stream lasts."""
        session = next(self._session_ids)
        task = asyncio.current_task()
        assert task is not None
        self._streams[session] = task
        stopped = False
        try:
            try:
                async for request in request_iterator:
                    answer, stopped = await self._register(session, request)
                    await rpc.write(context, answer)
            finally:
                # Before anything is answered: a broker whose stream broke must not be found any more.
                self._leave(session, stopped=stopped)
        except asyncio.CancelledError:
            reason = self._reasons.pop(session, None)
            if reason is None:
                raise
            await rpc.abort(context, Unavailable(reason))
        except MiniMQError as error:
            self.counters.refusals += 1
            level = logging.DEBUG if self._was_told(error) else logging.WARNING
            log.log(level, "registration refused reason=%r", error.message)
            raise
        finally:
            self._reasons.pop(session, None)

    async def _register(
        self, session: int, request: nameserver_pb2.RegisterRequest | bytes
    ) -> tuple[nameserver_pb2.RegisterResponse, bool]:
        """Take in what a broker tells; return the answer, and whether it stops."""
        if isinstance(request, bytes):
            state = await self._reader.read_encoded(request, self._table.known_topics())
            await self._changes.step(lambda: self._enter(session, state))
            return self._registered(state.broker_name), False
        if not request.heartbeat_only:
            state = await self._reader.read(request, self._table.known_topics())
            async with self._brief_changes:
                self._enter(session, state)
        elif not self._table.heartbeat(session, request.data_version, self._clock()):
            raise InvalidArgument(f"heartbeat of {request.broker_name} without a registration of the same version")
        return self._registered(request.broker_name), request.leaving

    def _enter(self, session: int, state: BrokerState) -> None:
        self.expire()  # so that a silent broker does not stand in the way
        known = self._table.broker(session)
        self._carry_out(self._table.register(session, state, self._clock()))
        self.counters.registrations += 1
        level = logging.INFO if known is None or known.broker_id != state.broker_id else logging.DEBUG
        log.log(level, "broker registered broker=%s cluster=%s topics=%d", state, state.cluster, len(state.topics))
        missing = self._table.missing_from(state.broker_name)
        if missing and known is None:
            text = "broker registered without topics that one of its name carried broker=%s missing=%d topic=%s"
            log.warning(text, state, len(missing), min(missing))

    def _registered(self, broker_name: str) -> nameserver_pb2.RegisterResponse:
        return nameserver_pb2.RegisterResponse(
            master_address=self._table.master_of(broker_name) or "",
            expire_after_ms=round(self._table.expire_after_s * 1000),
        )

    def _was_told(self, error: MiniMQError) -> bool:
        """Say whether a conflict is known: a refused broker tries again every second."""
        known = self._table.conflicts(self._clock())
        return any(conflict.times > 1 and conflict.reason == error.message for conflict in known)

    def _leave(self, session: int, *, stopped: bool) -> None:
        del self._streams[session]
        state = self._table.broker(session)
        if state is not None:
            log.info("broker left broker=%s stopped=%s", state, stopped)
        self._carry_out(self._table.unregister(session, self._clock(), stopped=stopped))

    def _carry_out(self, change: Change) -> None:
        self._events.forget(change.topics)
        self._tidying.begin()
        if not self._stopping:
            self._watchers.publish(change.topics)
        for session, reason in change.ended:
            self.counters.removals += 1
            log.warning("broker removed reason=%r", reason)
            if session in self._streams:
                self._reasons[session] = reason
                self._streams[session].cancel()

    async def SyncAccess(  # type: ignore[override]  # grpc.aio also takes a coroutine that writes by itself
        self,
        request_iterator: AsyncIterator[nameserver_pb2.AccessNotice | bytes],
        context: grpc.aio.ServicerContext[nameserver_pb2.AccessNotice, nameserver_pb2.AccessNotice],
    ) -> None:
        """Hand users and rules on, from whoever has the newest to all others."""
        if self._access is None:
            raise InvalidArgument("this name server has no users and rules: start it with --secrets DIR, as the others")
        task = asyncio.current_task()
        assert task is not None
        self._access_streams.add(task)
        try:
            peer = f"broker at {connections.address_of(context.peer())}"
            own = self._access
            await exchange(own, peer, request_iterator, lambda notice: rpc.write(context, notice), own.settle)
        finally:
            self._access_streams.discard(task)

    # ---- Clients ---------------------------------------------------------------------------------

    async def GetRoute(  # type: ignore[override]  # encoded, as `CallLimits` lets it be
        self,
        request: nameserver_pb2.GetRouteRequest,
        context: grpc.aio.ServicerContext[nameserver_pb2.GetRouteRequest, nameserver_pb2.GetRouteResponse],
    ) -> bytes:
        """Answer where the queues of a topic are."""
        check_topic(request.topic)
        self.counters.look_ups += 1
        route = self._events.get(request.topic)
        if not route.queues:
            self.counters.unknown_look_ups += 1
            if not (route.away and request.knows_away):
                raise self._unknown(request.topic, knows_away=request.knows_away)
        return route.encoded

    def _unknown(self, topic: str, *, knows_away: bool) -> MiniMQError:
        """Return why there is no route for a topic."""
        if not self._settled:
            text = f"topic {topic} is not known yet: this name server has just started and waits for its brokers"
            return SystemBusy(text, retry_after_s=_BUSY_RETRY_S)
        if not self._table.brokers():
            text = f"topic {topic} has no route: no broker is registered with this name server; start one with "
            cls = TopicUnavailable if knows_away else TopicNotFound
            return cls(text + "`minimq-broker --nameserver HOST:PORT`")
        return TopicNotFound.nowhere(topic)

    async def ListTopics(  # type: ignore[override]  # encoded, as the route
        self,
        request: nameserver_pb2.ListTopicsRequest,
        context: grpc.aio.ServicerContext[nameserver_pb2.ListTopicsRequest, nameserver_pb2.ListTopicsResponse],
    ) -> bytes:
        """Answer the names or the routes of all topics, sorted; each route is as it was at some moment of the call."""
        caller = current_caller()
        sees = None if caller.sees_all else partial(caller.sees, Resource.TOPIC)
        return await self._hand_out(lambda: self._lists.get(names_only=request.names_only, sees=sees), context)

    async def GetCluster(  # type: ignore[override]  # encoded, as the route
        self,
        request: nameserver_pb2.GetClusterRequest,
        context: grpc.aio.ServicerContext[nameserver_pb2.GetClusterRequest, nameserver_pb2.GetClusterResponse],
    ) -> bytes:
        """Answer all brokers and their versions, sorted by name, and those whose place another one has."""
        return await self._hand_out(self._describe_cluster, context)

    async def _describe_cluster(self) -> bytes:
        if self._cluster is None or self._cluster[0] != self._table.edition:
            brokers = nameserver_pb2.GetClusterResponse(
                brokers=[broker_to_wire(broker) for broker in self._table.brokers()],
                versions=[
                    nameserver_pb2.RegisteredVersion(broker_name=name, broker_id=broker_id, data_version=version)
                    for (name, broker_id), version in self._table.versions().items()
                ],
                away=[self._away_to_wire(away, away.queues) for away in self._table.away()],
            )
            self._cluster = self._table.edition, brokers.SerializeToString()
        may_see = current_caller().sees(Resource.CLUSTER, "")
        conflicts = self._table.conflicts(self._clock()) if may_see else []
        rest = nameserver_pb2.GetClusterResponse(
            conflicts=[self._conflict_to_wire(conflict) for conflict in conflicts],
            settled=self._settled,
            access_version=0 if self._access is None else self._access.rank.version,
            access_digest="" if self._access is None else self._access.rank.digest,
            access_only_reports=self._access is not None and self._access.only_reports,
        )
        # Encoded messages one after the other are the message that has the fields of both.
        return self._cluster[1] + rest.SerializeToString()

    async def _hand_out(
        self, make: Callable[[], Awaitable[bytes]], context: grpc.aio.ServicerContext[Any, Any]
    ) -> bytes:
        """Return an answer to the call of the present task: a large one when there is room, one after the other.

        It takes its room until the task has ended.
        """
        answer = await make()
        if len(answer) <= SMALL_BYTES:
            return answer
        del answer  # whoever waits holds none that is older than that of others
        task = asyncio.current_task()
        assert task is not None
        size = 0
        await self._handing_out.begin()
        try:
            while True:
                answer = await make()
                size = len(answer)
                if self._unsent.has_room(size):
                    break
                del answer
                await self._unsent.room(size)
            write = self._unsent.begin(context.peer(), size)
            task.add_done_callback(lambda _: self._unsent.end(write))
            return answer
        finally:
            self._handing_out.rest(size / _COPIED_BYTES_PER_S)

    async def ForgetBroker(
        self,
        request: nameserver_pb2.ForgetBrokerRequest,
        context: grpc.aio.ServicerContext[nameserver_pb2.ForgetBrokerRequest, nameserver_pb2.ForgetBrokerResponse],
    ) -> nameserver_pb2.ForgetBrokerResponse:
        """Remember a broker that is away no longer."""
        change = self._table.forget(check_broker(request.broker_name))
        if change is not None:
            text = "administration: broker forgotten name=%s old='away' new='-' caller=%s client=-"
            log.info(text, request.broker_name, connections.address_of(context.peer()), extra=ALWAYS_WRITTEN)
            self._carry_out(change)
        return nameserver_pb2.ForgetBrokerResponse(forgotten=change is not None)

    async def WatchRoutes(  # type: ignore[override]  # grpc.aio also takes a coroutine that writes by itself
        self,
        request_iterator: AsyncIterator[nameserver_pb2.WatchRoutesRequest | bytes],
        context: grpc.aio.ServicerContext[nameserver_pb2.WatchRoutesRequest, nameserver_pb2.RouteEvent],
    ) -> None:
        """Send the route of each watched topic, and again whenever it has changed, until the client ends its side."""
        watcher = Watcher()
        self._watchers.add(watcher)
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        self._writer.open(watcher, context)
        try:
            async for request in request_iterator:
                await self._watchers.follow(watcher, request)
            await self._writer.close(watcher)
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            await self._writer.close(watcher)
            await rpc.abort(context, Unavailable(_STOPPING))
        except Exception:
            await self._writer.close(watcher)
            raise
        finally:
            self._writer.abandon(watcher)
            self._watches.discard(task)
            self._watchers.remove(watcher)

    def _away_to_wire(self, away: RememberedBroker, queues: int) -> nameserver_pb2.AwayBroker:
        return nameserver_pb2.AwayBroker(
            broker=broker_to_wire(away.broker),
            since_ms=self._time_of_day_ms(away.since),
            stopped=away.stopped,
            queues=queues,
        )

    def _conflict_to_wire(self, conflict: Conflict) -> nameserver_pb2.BrokerConflictReport:
        return nameserver_pb2.BrokerConflictReport(
            cluster=conflict.cluster,
            broker_name=conflict.broker_name,
            broker_id=conflict.broker_id,
            address=conflict.address,
            holder_address=conflict.holder_address,
            reason=conflict.reason,
            first_ms=self._time_of_day_ms(conflict.first_at),
            last_ms=self._time_of_day_ms(conflict.last_at),
            times=conflict.times,
        )

    def _time_of_day_ms(self, moment: float) -> int:
        """Return a moment of the clock in ms since 1970: the same at each call."""
        began, began_at = self._began
        return round((began_at + moment - began) * 1000)
