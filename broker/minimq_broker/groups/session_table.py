"""The sessions of a broker: their table, the queued events of each, and the member lists of groups."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from minimq_broker.calls.engine import Engine
from minimq_broker.groups.groups import Members
from minimq_broker.groups.offsets import InitialOffsets
from minimq_broker.log.clock import now_ms
from minimq_common.errors import GroupConflict, MinimqError
from minimq_common.serving.periodic import slices
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: The session of a client ends if more bytes of events wait for it. Member lists do not count: only the latest one of
#: each group waits.
MAX_WAITING_BYTES = 8 << 20


class SessionKey(NamedTuple):
    """A client id is unique per user and group."""

    user: str
    group: str
    client_id: str


class Session:
    """One client. Its groups and leases outlive a broken stream by the grace period."""

    def __init__(self, key: SessionKey, run: int = 0) -> None:
        self.key = key
        self.client_id = key.client_id
        self.run = run
        self.connected = True
        #: Ended because heartbeats were missing: the client may still run, suspended or cut off.
        self.is_silent = False
        self.grace: asyncio.TimerHandle | None = None
        self.receiver: asyncio.Task[None] | None = None
        #: Why the broker has ended it.
        self.failure: MinimqError | None = None
        self.events = SessionEvents()
        #: The start position by group, for groups that are new.
        self.starts: dict[str, broker_pb2.StartPosition] = {}
        #: Groups that it is a member of, or waits to join after a rejection.
        self.groups: set[str] = set()
        #: Groups taken over from an earlier session of the client whose connection broke.
        self.inherited: set[str] = set()

    def tell(self, event: broker_pb2.SessionEvent) -> None:
        """Send an event. Ends the session if the client lets too many bytes wait."""
        self.events.add(event.SerializeToString())
        if self.events.waiting_bytes > MAX_WAITING_BYTES and self.receiver is not None:
            log.warning("session: ended, the client does not read client=%s", self.client_id)
            self.receiver.cancel()

    def end(self, error: MinimqError) -> None:
        self.failure = error
        if self.receiver is not None:
            self.receiver.cancel()


class SessionTable:
    """The sessions of all clients. Belongs to the event loop."""

    def __init__(self, users: dict[tuple[str, str], str] | None = None) -> None:
        #: The user of each member, by group and client id, for others to read.
        self._users = {} if users is None else users
        self._by_client: dict[SessionKey, Session] = {}
        self._by_member: dict[tuple[str, str], Session] = {}

    def __len__(self) -> int:
        return len(self._by_client)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_client.values())

    def find(self, key: SessionKey) -> Session | None:
        """Return the session of a client, which may be disconnected and in its grace period."""
        return self._by_client.get(key)

    def enter(self, session: Session) -> None:
        """Add a session; it takes over the groups of the client's former session."""
        former = self.find(session.key)
        self._by_client[session.key] = session
        if former is not None:
            self.hand_over(former, session)
            if session.run != former.run:
                session.inherited |= former.groups  # a new process knows nothing of the leases

    def hand_over(self, former: Session, session: Session) -> None:
        """Move the groups of the client's former session to `session`."""
        for group in former.groups:
            self.claim(group, session)
        if not former.is_silent:
            session.inherited |= former.groups

    def remove(self, session: Session) -> None:
        """Remove the session of a client, but not from the groups that it is in."""
        if self.find(session.key) is session:
            del self._by_client[session.key]

    def check(self, group: str, session: Session) -> None:
        """Raise `GroupConflict` if another client has this id in the group."""
        if not self.may_use(group, session):
            raise GroupConflict(
                f"client id {session.client_id!r} is in use by another client in group {group!r}: give each its own id"
            )

    def may_use(self, group: str, session: Session) -> bool:
        """Return whether no other client has this id in the group."""
        holder = self.member(group, session.client_id)
        return holder is None or holder.key == session.key

    def claim(self, group: str, session: Session) -> None:
        """Reserve the id of a client in a group. Raises `GroupConflict`."""
        self.check(group, session)
        self._by_member[group, session.client_id] = session
        self._users[group, session.client_id] = session.key.user
        session.groups.add(group)

    def release(self, group: str, session: Session) -> None:
        session.groups.discard(group)
        if self.may_use(group, session):
            self._by_member.pop((group, session.client_id), None)
            self._users.pop((group, session.client_id), None)

    def member(self, group: str, client_id: str) -> Session | None:
        """Return the session of a group's member, or of a client that was rejected there."""
        return self._by_member.get((group, client_id))


#: While more bytes of events wait, the broker receives nothing from the client.
_PAUSE_RECEIVING_BYTES = 64 << 10


class SessionEvents:
    """Encoded events that wait for one client, in order. A new member list replaces one that still waits."""

    def __init__(self) -> None:
        self._waiting: deque[bytes | str] = deque()  # the name of the group stands for its member list
        self._lists: dict[str, bytes] = {}
        #: The version of each group at the latest join of the client: older lists are outdated.
        self._versions: dict[str, int] = {}
        self._changed = asyncio.Event()
        self.waiting_bytes = 0

    def add(self, event: bytes) -> None:
        self._waiting.append(event)
        self.waiting_bytes += len(event)
        self._changed.set()

    def joined(self, group: str, version: int) -> None:
        """Drop the waiting member list if it is older than the client's join, and ignore older lists from now on."""
        if version > self._versions.get(group, 0) and self._lists.pop(group, None) is not None:
            self._waiting.remove(group)
        self._versions[group] = version

    def add_list(self, group: str, version: int, event: bytes) -> None:
        """Queue a member list, unless it is older than the latest join of the client."""
        if version < self._versions.get(group, 0):
            return
        if group not in self._lists:
            self._waiting.append(group)
        self._lists[group] = event
        self._changed.set()

    async def some(self) -> None:
        """Wait until there is an event."""
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()

    async def few(self) -> None:
        """Wait until few bytes of events wait."""
        while self.waiting_bytes > _PAUSE_RECEIVING_BYTES:
            self._changed.clear()
            await self._changed.wait()

    @property
    def next_size(self) -> int:
        """Bytes of the next event; 0 without one."""
        return len(self._event(self._waiting[0])) if self._waiting else 0

    def take(self) -> bytes | None:
        """Remove and return the next event; None without one."""
        if not self._waiting:
            return None
        item = self._waiting.popleft()
        event = self._event(item)
        if isinstance(item, str):
            del self._lists[item]
        else:
            self.waiting_bytes -= len(event)
        self._changed.set()
        return event

    def _event(self, item: bytes | str) -> bytes:
        return self._lists[item] if isinstance(item, str) else item


#: Seconds for which changes of a group are collected before its members are notified: members that start together
#: cause one round of notifications. Too short to be noticed.
ROUND_S = 0.05
#: Delay of a round as a multiple of the last one's duration: rounds of large groups use at most a tenth of the time.
_ROUND_SHARE = 10


class MemberLists:
    """Sends member lists to the members of groups, one list at a time. Belongs to the event loop."""

    def __init__(self, engine: Engine, starts: InitialOffsets, sessions: SessionTable, grace_ms: int) -> None:
        self._engine = engine
        self._starts = starts
        self._sessions = sessions
        self._grace_ms = grace_ms
        #: Groups with a scheduled round.
        self._changed: set[str] = set()
        self._making = asyncio.Lock()
        #: Duration of the latest round.
        self._round_took_s = 0.0
        self._is_retired = False

    def retire(self) -> None:
        """Send nothing from now on."""
        self._is_retired = True

    async def tell(self, group: str, events: SessionEvents) -> None:
        async with self._making:
            members = self._engine.tables.groups.members(group)
            events.add_list(group, members.version, await self._encoded(members))

    def tell_all_soon(self, group: str) -> None:
        """Schedule a round for a group. Changes until then are part of it."""
        if group not in self._changed:
            self._changed.add(group)
            after_s = max(ROUND_S, _ROUND_SHARE * self._round_took_s)
            asyncio.get_running_loop().call_later(after_s, self._begin, group)

    def _begin(self, group: str) -> None:
        if self._is_over:  # a task started now might never run
            return
        self._engine.streams.receive(self._tell_all(group), "member-list")

    async def _tell_all(self, group: str) -> None:
        async with self._making:
            self._changed.discard(group)
            if self._is_over:
                return
            began = time.monotonic()
            members = self._engine.tables.groups.members(group)
            event = await self._encoded(members)  # once for all members
            for client_id in members.client_ids:
                session = self._sessions.member(group, client_id)
                if session is not None:
                    session.events.add_list(group, members.version, event)
            self._round_took_s = time.monotonic() - began

    @property
    def _is_over(self) -> bool:
        return self._is_retired or not self._engine.store.is_readable

    async def _encoded(self, members: Members) -> bytes:
        agreement = self._engine.tables.groups.agreement(members.group)
        begun = self._starts.begun(members.group, agreement.topics if agreement else ())
        return await member_list(members, begun, self._grace_ms)


async def member_list(members: Members, begun: Iterable[broker_pb2.TopicBegun], grace_ms: int) -> bytes:
    """Encode a member list, with pauses in which other tasks of the event loop run."""
    told = broker_pb2.GroupMembers(
        group=members.group,
        version=members.version,
        client_ids=members.client_ids,
        grace_ms=grace_ms,
        begun=begun,
        now_ms=now_ms(),
    )
    for client_id, topics in members.topics.items():
        told.topics.add(client_id=client_id, topics=topics)
    async for part in slices([(client_id, queue) for client_id, held in members.held.items() for queue in held]):
        for client_id, queue in part:
            if not told.held or told.held[-1].client_id != client_id:
                told.held.add(client_id=client_id)
            told.held[-1].queues.add(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)
    return broker_pb2.SessionEvent(members=told).SerializeToString()
