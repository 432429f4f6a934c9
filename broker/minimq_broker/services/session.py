"""Sessions of consumers: one stream per client, on which group membership and leases are kept.

A stream that breaks is a dead client after a short grace, in which the client may come back and go on. A client that
hangs is noticed by its heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import grpc.aio

from minimq_broker.core.facts import CommittedOffset, Fact, GroupStarted
from minimq_broker.core.groups import Members
from minimq_broker.core.leases import Granted, LeaseEvent, LeaseKey
from minimq_broker.core.state import QueueKey, State
from minimq_broker.services.engine import Engine
from minimq_common.errors import GroupConflict, InvalidArgument, MiniMQError, QueueNotFound, TopicNotFound
from minimq_common.names import RETRY_PREFIX, check_group
from minimq_common.rpc import to_failure
from minimq_common.stream_writer import StreamWriter
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
        self.receiver: asyncio.Task[None] | None = None
        self.events: asyncio.Queue[broker_pb2.SessionEvent] = asyncio.Queue(MAX_WAITING_EVENTS)

    def tell(self, event: broker_pb2.SessionEvent) -> None:
        try:
            self.events.put_nowait(event)
        except asyncio.QueueFull:
            log.warning("session: ended, the client does not read client=%s", self.client_id)
            if self.receiver is not None:
                self.receiver.cancel()


class SessionService:
    """The `Session` call of the broker."""

    def __init__(self, engine: Engine, options: SessionOptions) -> None:
        self._engine = engine
        self._options = options
        self._sessions: dict[str, _Session] = {}
        self._lease_events: asyncio.Queue[LeaseEvent] = asyncio.Queue()
        engine.receive(self._deliver_lease_events(), "session-lease-events")

    async def serve(self, requests: AsyncIterator[broker_pb2.SessionRequest], context: Context) -> None:
        """Serve one client until its stream ends. Raises `GroupConflict` when its id is in use."""
        incoming = aiter(requests)
        first = await anext(incoming, None)
        if first is None:
            return
        session = self._open(first.client_id)
        name = f"session-{session.client_id}"
        writer: StreamWriter[broker_pb2.SessionEvent] = StreamWriter(context)
        sender = asyncio.create_task(_send(session, writer), name=f"{name}-sender")
        receiver = session.receiver = self._engine.receive(self._receive(session, first, incoming), f"{name}-receiver")
        try:
            await asyncio.wait((receiver,))
        finally:
            receiver.cancel()
            sender.cancel()
            self._disconnected(session)
        await writer.drained()

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
        session.grace = loop.call_later(self._options.grace_s, self._bury, session)

    def _bury(self, session: _Session) -> None:
        """Take a dead client out of its groups."""
        if self._sessions.get(session.client_id) is not session:
            return  # it came back at the last moment
        del self._sessions[session.client_id]
        for group in self._engine.groups.groups_of(session.client_id):
            log.info("session: member lost group=%s client=%s", group, session.client_id)
            self._leave(group, session.client_id)

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
                    self._acquire(group, session.client_id, request.acquire.queues)
                case "release":
                    group = request.release.group
                    for key in self._lease_keys(group, request.release.queues):
                        self._tell_later(self._engine.leases.release(key, session.client_id))
                case "leave":
                    self._leave(request.leave.group, session.client_id)
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
                offsets.append(CommittedOffset(*queue, self._start_offset(queue, _start_in(name, start))))
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

    def _acquire(self, group: str, client_id: str, queues: Iterable[broker_pb2.QueueOffset]) -> None:
        if not self._engine.groups.is_member(group, client_id):
            raise InvalidArgument(f"{client_id} is not in group {group!r}: join it before acquiring queues")
        for key in self._lease_keys(group, queues):
            self._tell_later(self._engine.leases.acquire(key, client_id))

    def _leave(self, group: str, client_id: str) -> None:
        changed = self._engine.groups.leave(group, client_id)
        self._tell_later(self._engine.leases.drop(group, client_id))
        if changed is not None:
            self._broadcast(changed)

    def _lease_keys(self, group: str, queues: Iterable[broker_pb2.QueueOffset]) -> Iterator[LeaseKey]:
        """Yield the keys of those queues that are here; a topic that was deleted must not harm the others."""
        for item in queues:
            try:
                yield LeaseKey(group, self._engine.state.queue(item.topic, item.queue_id))
            except (TopicNotFound, QueueNotFound) as error:
                log.info("session: passed over group=%s reason=%s", group, error)

    # ---- telling --------------------------------------------------------------------------------

    def _broadcast(self, members: Members) -> None:
        for client_id in members.client_ids:
            session = self._sessions.get(client_id)
            if session is not None:
                session.tell(_members_event(members))

    def _tell_later(self, events: Iterable[LeaseEvent]) -> None:
        for event in events:
            self._lease_events.put_nowait(event)

    async def _deliver_lease_events(self) -> None:
        """Tell members what became of leases. A task of its own: whose request it was may be gone by then."""
        while True:
            events = [await self._lease_events.get()]
            while not self._lease_events.empty():
                events.append(self._lease_events.get_nowait())
            try:
                # The last commit of a former owner may be on its way to the disk; the new owner starts behind it.
                await self._engine.record(lambda _: None)
            except MiniMQError as error:
                log.warning("session: leases are granted though nothing can be written reason=%s", error)
            for event in events:
                self._tell_of_lease(event)

    def _tell_of_lease(self, event: LeaseEvent) -> None:
        session = self._sessions.get(event.client_id)
        if session is None:
            return
        owner = self._engine.leases.owner(event.key)
        if isinstance(event, Granted) and owner != (event.client_id, event.epoch):
            return  # given back meanwhile
        try:
            session.tell(self._lease_event(event))
        except TopicNotFound:
            log.info("session: the topic of a lease was deleted client=%s", event.client_id)
        except Exception:  # a queue that cannot be looked up must not end the grants of all others
            log.exception("session: a lease could not be told client=%s key=%s", event.client_id, event.key)

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
            group=group,
            topic=topic,
            queue_id=queue.queue_id,
            epoch=event.epoch,
            offset=offset,
            topic_id=queue.topic_id,
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


def _start_in(topic: str, start: broker_pb2.StartPosition) -> broker_pb2.StartPosition:
    """Return where a group begins in a topic: what waits there for another try of its own is never passed over."""
    earliest = broker_pb2.StartPosition(at=broker_pb2.START_AT_EARLIEST)
    return earliest if topic.startswith(RETRY_PREFIX) else start


async def _send(session: _Session, writer: StreamWriter[broker_pb2.SessionEvent]) -> None:
    while True:
        event = await session.events.get()
        await writer.write(partial(_as_it_is, event))


def _as_it_is(event: broker_pb2.SessionEvent) -> broker_pb2.SessionEvent:
    return event
