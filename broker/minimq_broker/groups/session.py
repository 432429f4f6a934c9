"""Sessions of consumers: one stream per client, which carries group membership and leases."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

import grpc.aio

from minimq_broker.calls.engine import Engine
from minimq_broker.groups.claims import LEASES
from minimq_broker.groups.client_runs import fenced, is_newer
from minimq_broker.groups.groups import GroupConfig
from minimq_broker.groups.lease_service import LeaseKeeper, rejection
from minimq_broker.groups.member_lists import MemberLists
from minimq_broker.groups.offsets import InitialOffset, InitialOffsets, check_new_group
from minimq_broker.groups.sessions import EARLIEST, Session
from minimq_broker.options import KernelOptions
from minimq_broker.state.facts import Fact, GroupAgreed
from minimq_broker.state.state import State
from minimq_common.errors import (
    AccessDenied,
    Fenced,
    GroupConflict,
    InvalidArgument,
    MinimqError,
    SystemBusy,
    Unavailable,
)
from minimq_common.model import MessageQueue
from minimq_common.names import check_client_id, check_group
from minimq_common.security.caller import current_caller
from minimq_common.serving.periodic import slices
from minimq_common.wire.bound_check import check_bounds
from minimq_proto.v1 import broker_pb2

Context = grpc.aio.ServicerContext[broker_pb2.SessionRequest, broker_pb2.SessionEvent]
log = logging.getLogger(__name__)

#: Handling a larger request takes a millisecond or more.
_LARGE_BYTES = 16 << 10


class SessionService:
    def __init__(self, engine: Engine, options: KernelOptions, broker_name: str) -> None:
        self._engine = engine
        self._options = options
        self._sessions = engine.tables.sessions
        self._is_retired = False
        #: Serializes large requests, so that others run in between.
        self._turn = asyncio.Lock()
        self._starts = InitialOffsets(engine)
        self._lists = MemberLists(engine, self._starts, round(options.session_grace_s * 1000))
        self.leases = LeaseKeeper(engine, self._starts, broker_name, self._tell)
        asyncio.get_running_loop().call_at(engine.tables.groups.remembered_until, self._end_recovery)

    def retire(self) -> None:
        """Stop changing groups and leases: the engine now has those of a new role."""
        self._is_retired = True
        self._lists.retire()
        self.leases.retire()

    async def begin_anew(self, group: str) -> None:
        """Continue a deleted group that still has members as a new group, from the start position of its members."""
        agreement = self._engine.tables.groups.agreement(group)
        if agreement is None:
            return
        self.keep_agreement(group)
        starts = (session.start for session in self._sessions.values() if session.group == group)
        start = next(starts, EARLIEST)  # after a restart, no member may be back yet
        for name in agreement.topics:
            await self._starts.decide(group, name, InitialOffset(start))
        async for part in slices(self._engine.tables.leases.of_group(group)):
            self.leases.renew(part)

    async def serve(self, requests: AsyncIterator[broker_pb2.SessionRequest], context: Context) -> None:
        """Serve one client until its stream ends. Raises `NotMaster`, and `Fenced` if another one has its id now."""
        self._engine.writes.check()
        incoming = aiter(requests)
        first = await anext(incoming, None)
        if first is None:
            return
        engine, client_id = self._engine, check_client_id(first.client_id)
        session = Session(context, engine.writes.soon, engine.unsent, current_caller().user, client_id, first.run)
        receiver = self._receive(session, first, incoming)
        del first  # may be large
        await engine.streams.serve(receiver, f"session-{client_id}-receiver", session)

    async def _receive(
        self,
        session: Session,
        request: broker_pb2.SessionRequest | None,
        incoming: AsyncIterator[broker_pb2.SessionRequest],
    ) -> None:
        try:
            while request is not None and not session.is_closed:
                self._engine.writes.check()  # clients trust their leases as long as this broker answers
                if request.ByteSize() > _LARGE_BYTES:
                    async with self._turn:  # one per loop iteration
                        await self._handle(session, request)
                        await asyncio.sleep(0)
                else:
                    await self._handle(session, request)
                del request
                async with asyncio.timeout(self._options.session_timeout_s):
                    await session.few()
                    request = await anext(incoming, None)
        except TimeoutError:
            session.is_silent = True
            log.warning(
                "session: ended, the client sends no heartbeats or reads nothing client=%s seconds=%s",
                session.client_id,
                self._options.session_timeout_s,
            )
        finally:  # waiting events are dropped
            session.close()
            self._disconnected(session)

    # ---- opening and ending ---------------------------------------------------------------------

    def _enter(self, session: Session, group: str) -> None:
        """Reserve the id of a client in a group; it continues the client's former session."""
        if session.group not in ("", group):
            raise InvalidArgument(f"this session is in group {session.group!r}: open another one for group {group!r}")
        client_id, former, most = session.client_id, self._held(session, group), self._engine.limits.max_sessions
        if former is session:
            return
        if former is None and len(self._sessions) >= most:
            raise SystemBusy(
                f"this broker already serves {most} consumers, which is its limit: stop some", limit="sessions"
            )
        if former is not None:
            other = is_newer(session.run, former.run, client_id)
            if former.connected:
                former.end(fenced(client_id) if other else Unavailable("the client has opened another session"))
                log.info("session: taken over group=%s client=%s same_process=%s", group, client_id, not other)
            if former.grace is not None:
                former.grace.cancel()
            session.is_back = other or not former.is_silent  # a new process knows nothing of the leases
        session.group = group
        self._sessions[group, client_id] = session

    def _held(self, session: Session, group: str) -> Session | None:
        """Return the session with this client id in a group. Raises `GroupConflict` if it is of another user."""
        held = self._sessions.get((group, session.client_id))
        if held is not None and held.user != session.user:
            raise GroupConflict(
                f"client id {session.client_id!r} is in use by another client in group {group!r}: give each its own id"
            )
        return held

    def _is_current(self, session: Session) -> bool:
        return not self._is_retired and self._sessions.get((session.group, session.client_id)) is session

    def _is_member(self, session: Session) -> bool:
        return self._engine.tables.groups.is_member(session.group, session.client_id)

    def _disconnected(self, session: Session) -> None:
        session.connected = False
        if not self._is_current(session):
            return
        if self._is_member(session):
            loop = asyncio.get_running_loop()
            session.grace = loop.call_later(self._options.session_grace_s, self._end_grace, session)
        else:
            self._leave_at_once(session)

    def _end_grace(self, session: Session) -> None:
        self._engine.streams.receive(self._leave_after_grace(session), "session-grace")

    async def _leave_after_grace(self, session: Session) -> None:
        is_member = self._is_member(session)
        if await self._leave(session) and is_member:
            log.info("session: member lost group=%s client=%s", session.group, session.client_id)

    # ---- requests -------------------------------------------------------------------------------

    async def _handle(self, session: Session, request: broker_pb2.SessionRequest) -> None:
        try:
            check_bounds(request)
            current_caller().check(request)
            await self._act(session, request)
        except MinimqError as error:
            if isinstance(error, AccessDenied):  # the right may have been revoked since it joined
                await self._leave(session)
            self._engine.rejections.note(error)
            if isinstance(error, Fenced) or getattr(error, "limit", "") == "sessions":
                session.end(error)
            else:
                session.tell(rejection(_group(request), error))

    async def _act(self, session: Session, request: broker_pb2.SessionRequest) -> None:
        action, group = request.WhichOneof("action"), _group(request)
        is_member = self._held(session, group) is session
        if not is_member and action not in ("join", "acquire", "heartbeat"):
            return  # it has left
        match action:
            case "join":
                self._enter(session, check_group(group))
                await self._join(session, request.join)
            case "holding":
                held, adds = await _queues(request.holding.queues), request.holding.adds
                self._engine.tables.groups.hold(group, session.client_id, held, adds=adds)
            case "acquire":
                await self.leases.acquire(session.client_id, request.acquire, session.start, is_back=session.is_back)
            case "release":
                await self.leases.release(group, session.client_id, request.release.queues)
            case "saved":
                await self.leases.saved(group, session.client_id, request.saved.queues)
            case "leave":
                await self._leave(session)
            case "heartbeat":
                session.tell(broker_pb2.SessionEvent(heartbeat=request.heartbeat))

    async def _join(self, session: Session, join: broker_pb2.JoinGroup) -> None:
        group = join.group
        agreement, held = _agreement(join), await _queues(join.held)
        check_new_group(self._engine, group)
        self._engine.tables.claims.check(group, LEASES)
        try:
            now = asyncio.get_running_loop().time()
            changed = self._engine.tables.groups.join(group, session.client_id, agreement, held, now=now)
        except SystemBusy:
            if not self._is_member(session):
                del self._sessions[group, session.client_id]
            raise
        self._engine.tables.claims.add(group, session.client_id, LEASES)
        if changed is not None:
            self._changed(group)
        session.start = join.start
        session.joined(group, (changed or self._engine.tables.groups.members(group)).version)
        if changed is None:
            await self._lists.tell(group, session)
        else:
            self._lists.tell_all_soon(group)

    def _changed(self, group: str) -> None:
        self.keep_agreement(group)
        for client_id in self._engine.tables.groups.admissible(group, asyncio.get_running_loop().time()):
            event = broker_pb2.SessionEvent(conflict_over=broker_pb2.ConflictOver(group=group))  # it may join again
            self._tell(group, client_id, event)

    def keep_agreement(self, group: str) -> None:
        """Start recording the current agreement of a group, before any write of its members to a queue."""
        if self._engine.store.writer.leads:
            self._engine.streams.receive(self._record(group, self._engine.tables.groups.agreement(group)), "agreement")

    async def _record(self, group: str, agreement: GroupConfig | None) -> None:
        def decide(state: State) -> Fact | None:
            return None if state.agreements.get(group) == agreement else GroupAgreed(group, agreement)

        try:
            await self._engine.writes.record(decide)
        except MinimqError as error:
            log.warning("group: the agreement of its members is not recorded group=%s reason=%s", group, error)

    def _end_recovery(self) -> None:
        if not self._is_retired:
            for group in self._engine.tables.groups.end_recovery():
                self._changed(group)

    async def _leave(self, session: Session) -> bool:
        while self._is_current(session):
            if self.leases.drop(session.group, session.client_id):
                self._leave_at_once(session)
                return True
            await asyncio.sleep(0)
        return False

    def _leave_at_once(self, session: Session) -> None:
        group = session.group
        del self._sessions[group, session.client_id]
        if self._engine.tables.groups.leave(group, session.client_id) is not None:
            self._engine.tables.claims.remove(group, session.client_id, LEASES)
            self._changed(group)
            self._lists.tell_all_soon(group)

    # ---- sending events -------------------------------------------------------------------------

    def _tell(self, group: str, client_id: str, event: broker_pb2.SessionEvent) -> None:
        session = self._sessions.get((group, client_id))
        if session is not None:
            session.tell(event)


def _group(request: broker_pb2.SessionRequest) -> str:
    action = request.WhichOneof("action")
    return "" if action in (None, "heartbeat") else str(getattr(request, action).group)


def _agreement(join: broker_pb2.JoinGroup) -> GroupConfig:
    filters = join.filters or [""] * len(join.topics)
    if len(filters) != len(join.topics):
        raise InvalidArgument(f"{len(join.filters)} filters for {len(join.topics)} topics: give one for each, or none")
    by_topic = dict(zip(join.topics, filters, strict=True))
    return GroupConfig(tuple(sorted(by_topic.items())), join.allocation, join.handover_timeout_ms)


async def _queues(names: Sequence[broker_pb2.QueueName]) -> list[MessageQueue]:
    known: dict[str, str] = {}
    found: list[MessageQueue] = []
    async for part in slices(names):
        for item in part:
            topic, broker_name = item.topic, item.broker_name
            queue = known.setdefault(topic, topic), known.setdefault(broker_name, broker_name), item.queue_id
            found.append(MessageQueue(*queue))
    return found
