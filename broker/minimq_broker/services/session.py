"""Sessions of consumers: one stream per client, on which group membership and leases are kept.

A stream that breaks is a dead client after a short grace, in which the client may come back and go on. A client that
hangs is noticed by its heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from functools import partial

import grpc.aio

from minimq_broker.core.facts import CommittedOffset, Fact, GroupStarted
from minimq_broker.core.groups import Members
from minimq_broker.core.leases import Granted, LeaseEvent, LeaseKey
from minimq_broker.core.state import QueueKey, State
from minimq_broker.services.engine import Engine
from minimq_common.errors import GroupConflict, InvalidArgument, MiniMQError, QueueNotFound, TopicNotFound
from minimq_common.names import check_group
from minimq_common.rpc import to_failure
from minimq_proto.v1 import broker_pb2

Context = grpc.aio.ServicerContext[broker_pb2.SessionRequest, broker_pb2.SessionEvent]
log = logging.getLogger(__name__)

#: Events that may wait for a client that does not read; with more its session ends.
MAX_WAITING_EVENTS = 100_000


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """When a client counts as dead.

    Attributes:
        grace_s: seconds after its stream broke.
        timeout_s: seconds without a heartbeat.
    """

    grace_s: float = 3.0
    timeout_s: float = 60.0


class _Session:
    """One client. Its groups and leases outlive a broken stream for the time of the grace."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.connected = True
        self.grace: asyncio.TimerHandle | None = None
        self.events: asyncio.Queue[broker_pb2.SessionEvent] = asyncio.Queue(MAX_WAITING_EVENTS)

    def tell(self, event: broker_pb2.SessionEvent) -> None:
        try:
            self.events.put_nowait(event)
        except asyncio.QueueFull:
            log.warning("session: events dropped, the client does not read client=%s", self.client_id)


class SessionService:
    """The `Session` call of the broker."""

    def __init__(self, engine: Engine, options: SessionOptions) -> None:
        self._engine = engine
        self._options = options
        self._sessions: dict[str, _Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, requests: AsyncIterator[broker_pb2.SessionRequest], context: Context) -> None:
        """Serve one client until its stream ends. Raises `GroupConflict` when its id is in use."""
        incoming = aiter(requests)
        first = await anext(incoming, None)
        if first is None:
            return
        session = self._open(first.client_id)
        name = f"session-{session.client_id}"
        sender = asyncio.create_task(_send(session, context), name=f"{name}-sender")
        receiver = self._engine.receive(self._receive(session, first, incoming), f"{name}-receiver")
        try:
            await asyncio.wait((receiver,))
        finally:
            receiver.cancel()
            sender.cancel()
            self._disconnected(session)

    async def _receive(
        self,
        session: _Session,
        first: broker_pb2.SessionRequest,
        incoming: AsyncIterator[broker_pb2.SessionRequest],
    ) -> None:
        try:
            request: broker_pb2.SessionRequest | None = first
            while request is not None:
                await self._handle(session, request)
                async with asyncio.timeout(self._options.timeout_s):
                    request = await anext(incoming, None)
        except TimeoutError:
            log.warning("session: no heartbeat client=%s seconds=%s", session.client_id, self._options.timeout_s)

    # ---- coming and going -----------------------------------------------------------------------

    def _open(self, client_id: str) -> _Session:
        if not client_id:
            raise InvalidArgument("the first request of a session names the client")
        former = self._sessions.get(client_id)
        if former is not None and former.connected:
            raise GroupConflict(
                f"client id {client_id!r} is in use by another client that is connected: give each its own id"
            )
        if former is not None and former.grace is not None:
            former.grace.cancel()
        session = self._sessions[client_id] = _Session(client_id)
        return session

    def _disconnected(self, session: _Session) -> None:
        session.connected = False
        if not self._engine.groups.groups_of(session.client_id):
            self._sessions.pop(session.client_id, None)
            return
        loop = asyncio.get_running_loop()
        session.grace = loop.call_later(self._options.grace_s, self._start, session)

    def _start(self, session: _Session) -> None:
        task = asyncio.create_task(self._bury(session), name=f"session-end-{session.client_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bury(self, session: _Session) -> None:
        """Take a dead client out of its groups."""
        if self._sessions.get(session.client_id) is not session:
            return  # it came back at the last moment
        del self._sessions[session.client_id]
        for group in self._engine.groups.groups_of(session.client_id):
            log.info("session: member lost group=%s client=%s", group, session.client_id)
            await self._leave(group, session.client_id)

    # ---- requests -------------------------------------------------------------------------------

    async def _handle(self, session: _Session, request: broker_pb2.SessionRequest) -> None:
        action = request.WhichOneof("action")
        group = ""
        try:
            match action:
                case "join":
                    group = request.join.group
                    await self._join(session, request.join)
                case "acquire":
                    group = request.acquire.group
                    for item in request.acquire.queues:
                        key = self._lease_key(group, item)
                        await self._deliver(self._engine.leases.acquire(key, session.client_id))
                case "release":
                    group = request.release.group
                    for item in request.release.queues:
                        key = self._lease_key(group, item)
                        await self._deliver(self._engine.leases.release(key, session.client_id))
                case "leave":
                    await self._leave(request.leave.group, session.client_id)
                case "heartbeat":
                    session.tell(broker_pb2.SessionEvent(heartbeat=broker_pb2.Heartbeat()))
        except MiniMQError as error:
            refused = broker_pb2.SessionRefused(group=group, failure=to_failure(error))
            session.tell(broker_pb2.SessionEvent(refused=refused))

    async def _join(self, session: _Session, join: broker_pb2.JoinGroup) -> None:
        group = check_group(join.group)
        changed = self._engine.groups.join(group, session.client_id, frozenset(join.topics), join.allocation)
        for name in join.topics:
            topic = self._engine.state.topics.get(name)
            if topic is not None and (group, topic.topic_id) not in self._engine.state.started:
                await self._engine.record(partial(self._decide_start, group, name, join.start))
        if changed is None:
            session.tell(_members_event(self._engine.groups.members(group)))
        else:
            # Not `changed`: others may have come while the start was recorded.
            self._broadcast(self._engine.groups.members(group))

    def _decide_start(self, group: str, name: str, start: broker_pb2.StartPosition, state: State) -> Fact | None:
        topic = state.topics.get(name)
        if topic is None or (group, topic.topic_id) in state.started:
            return None
        offsets = []
        for queue_id in range(topic.queues):
            queue = QueueKey(topic.topic_id, queue_id)
            if state.offset(group, queue) is None:  # otherwise somebody committed by hand before
                offsets.append(CommittedOffset(*queue, self._start_offset(queue, start)))
        return GroupStarted(group, topic.topic_id, tuple(offsets))

    def _start_offset(self, queue: QueueKey, start: broker_pb2.StartPosition) -> int:
        first, end = self._engine.store.bounds(queue)
        match start.at:
            case broker_pb2.START_AT_EARLIEST:
                return first
            case broker_pb2.START_AT_TIMESTAMP:
                return self._engine.store.offset_at(queue, start.timestamp_ms)
            case _:
                return end

    async def _leave(self, group: str, client_id: str) -> None:
        changed = self._engine.groups.leave(group, client_id)
        await self._deliver(self._engine.leases.drop(group, client_id))
        if changed is not None:
            self._broadcast(changed)

    def _lease_key(self, group: str, item: broker_pb2.QueueOffset) -> LeaseKey:
        return LeaseKey(check_group(group), self._engine.state.queue(item.topic, item.queue_id))

    # ---- telling --------------------------------------------------------------------------------

    def _broadcast(self, members: Members) -> None:
        for client_id in members.client_ids:
            session = self._sessions.get(client_id)
            if session is not None:
                session.tell(_members_event(members))

    async def _deliver(self, events: Iterable[LeaseEvent]) -> None:
        events = list(events)
        if any(isinstance(event, Granted) for event in events):
            # The former owner's last commit may still be on its way to the disk; the new owner starts behind it.
            await self._engine.record(lambda _: None)
        for event in events:
            session = self._sessions.get(event.client_id)
            if session is not None:
                try:
                    session.tell(self._lease_event(event))
                except (TopicNotFound, QueueNotFound):
                    continue  # the topic was deleted meanwhile; its members hear of that by the route

    def _lease_event(self, event: LeaseEvent) -> broker_pb2.SessionEvent:
        group, queue = event.key
        topic = self._topic_name(queue)
        if not isinstance(event, Granted):
            wanted = broker_pb2.QueueWanted(group=group, topic=topic, queue_id=queue.queue_id)
            return broker_pb2.SessionEvent(wanted=wanted)
        first, end = self._engine.store.bounds(queue)
        committed = self._engine.state.offset(group, queue)
        # A queue that came after the group had started has no committed offset: it is read from its beginning.
        offset = first if committed is None else min(max(committed, first), end)
        granted = broker_pb2.QueueGranted(
            group=group, topic=topic, queue_id=queue.queue_id, epoch=event.epoch, offset=offset
        )
        return broker_pb2.SessionEvent(granted=granted)

    def _topic_name(self, queue: QueueKey) -> str:
        for name, topic in self._engine.state.topics.copy().items():
            if topic.topic_id == queue.topic_id:
                return name
        raise TopicNotFound(f"the topic with id {queue.topic_id} was deleted")


def _members_event(members: Members) -> broker_pb2.SessionEvent:
    event = broker_pb2.GroupMembers(group=members.group, version=members.version, client_ids=members.client_ids)
    return broker_pb2.SessionEvent(members=event)


async def _send(session: _Session, context: Context) -> None:
    while True:
        await context.write(await session.events.get())
