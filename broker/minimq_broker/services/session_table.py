"""The sessions of a broker: their table, the events that wait in each, and the member lists among these."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from minimq_broker.core.groups import Members
from minimq_broker.services.clock import now_ms
from minimq_broker.services.engine import Engine
from minimq_broker.services.offsets import GroupBeginnings
from minimq_common.errors import GroupConflict
from minimq_common.serving.periodic import slices
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: Bytes of events that may wait for a client that does not read, besides member lists, of which the latest one of each
#: group waits; with more its session ends.
MAX_WAITING_BYTES = 8 << 20


class Session:
    """One client. Its groups and leases outlive a broken stream for the time of the grace."""

    def __init__(self, client_id: str, user: str) -> None:
        self.client_id = client_id
        #: Whose it is: other users have clients of their own by the same id.
        self.user = user
        self.connected = True
        #: It ended for want of heartbeats: the client may live, and be cut off or stopped.
        self.is_silent = False
        self.grace: asyncio.TimerHandle | None = None
        self.receiver: asyncio.Task[None] | None = None
        self.events = SessionEvents()
        #: Where its groups begin if they are new.
        self.starts: dict[str, broker_pb2.StartPosition] = {}
        #: The groups that it is in, or waits for after it was refused.
        self.groups: set[str] = set()
        #: Groups that it has of a former session of its client whose connection broke.
        self.inherited: set[str] = set()

    def tell(self, event: broker_pb2.SessionEvent) -> None:
        """Send an event; a client that lets too many wait loses its session."""
        self.events.add(event.SerializeToString())
        if self.events.waiting_bytes > MAX_WAITING_BYTES and self.receiver is not None:
            log.warning("session: ended, the client does not read client=%s", self.client_id)
            self.receiver.cancel()


class SessionTable:
    """The sessions of all clients. Used on the event loop of the broker.

    A client id is one of a user: a session under the id of another user's client takes nothing from that one. Within a
    group ids are unique, so there the first one has it.
    """

    def __init__(self) -> None:
        self._by_client: dict[tuple[str, str], Session] = {}
        self._by_member: dict[tuple[str, str], Session] = {}

    def __len__(self) -> int:
        return len(self._by_client)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_client.values())

    def find(self, user: str, client_id: str) -> Session | None:
        """Return the session of a client of a user, which may be away in its grace."""
        return self._by_client.get((user, client_id))

    def enter(self, session: Session) -> None:
        """Add a session; it goes on with the groups of the former one of its client."""
        former = self.find(session.user, session.client_id)
        self._by_client[session.user, session.client_id] = session
        if former is not None:
            self.hand_over(former, session)

    def hand_over(self, former: Session, session: Session) -> None:
        """Have a session go on with the groups of the former one of its client."""
        for group in former.groups:
            self.claim(group, session)
        if not former.is_silent:
            session.inherited |= former.groups

    def remove(self, session: Session) -> None:
        """Forget a client, but for the groups that it is in."""
        if self.find(session.user, session.client_id) is session:
            del self._by_client[session.user, session.client_id]

    def check(self, group: str, session: Session) -> None:
        """Raise `GroupConflict` if another user's client goes by this id in a group."""
        if not self.may_use(group, session):
            raise GroupConflict(
                f"client id {session.client_id!r} is in use by another client in group {group!r}: give each its own id"
            )

    def may_use(self, group: str, session: Session) -> bool:
        """Return whether no other user's client goes by this id in a group."""
        holder = self.member(group, session.client_id)
        return holder is None or holder.user == session.user

    def claim(self, group: str, session: Session) -> None:
        """Have a client go by its id in a group. Raises as `check`."""
        self.check(group, session)
        self._by_member[group, session.client_id] = session
        session.groups.add(group)

    def release(self, group: str, session: Session) -> None:
        """Let others have the id in a group."""
        session.groups.discard(group)
        if self.may_use(group, session):
            self._by_member.pop((group, session.client_id), None)

    def member(self, group: str, client_id: str) -> Session | None:
        """Return the session of a member of a group, or of a client that was refused there."""
        return self._by_member.get((group, client_id))


#: With more than this nothing is to be received from a client.
_ENOUGH_BYTES = 64 << 10


class SessionEvents:
    """Encoded events that wait for one client, in order. A member list replaces one that still waits."""

    def __init__(self) -> None:
        self._waiting: deque[bytes | str] = deque()  # of member lists the group
        self._lists: dict[str, bytes] = {}
        #: The version of each group with the latest join of the client: older lists are of a time before.
        self._versions: dict[str, int] = {}
        self._changed = asyncio.Event()
        self.waiting_bytes = 0

    def add(self, event: bytes) -> None:
        """Let an event wait."""
        self._waiting.append(event)
        self.waiting_bytes += len(event)
        self._changed.set()

    def joined(self, group: str, version: int) -> None:
        """Let no list of a group wait any more that is older than a version."""
        if version > self._versions.get(group, 0) and self._lists.pop(group, None) is not None:
            self._waiting.remove(group)
        self._versions[group] = version

    def add_list(self, group: str, version: int, event: bytes) -> None:
        """Let a member list wait, unless it is from before the client has joined, maybe anew."""
        if version < self._versions.get(group, 0):
            return
        if group not in self._lists:
            self._waiting.append(group)
        self._lists[group] = event
        self._changed.set()

    async def some(self) -> None:
        """Return when an event waits."""
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()

    async def few(self) -> None:
        """Return when not many wait."""
        while self.waiting_bytes > _ENOUGH_BYTES:
            self._changed.clear()
            await self._changed.wait()

    @property
    def next_size(self) -> int:
        """Bytes of the first of them; 0 when there is none."""
        return len(self._event(self._waiting[0])) if self._waiting else 0

    def take(self) -> bytes | None:
        """Return the first of them; None when there is none any more."""
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


#: Time in seconds for which changes of a group are collected before its members are notified: members that start
#: together make one round of it, and nobody notices the delay.
ROUND_S = 0.05
#: Rounds of large groups come later, so that they use at most one part in this many of the time.
_ROUND_SHARE = 10


class MemberLists:
    """Sends the members of groups their member lists, made one after the other. Lives on the event loop."""

    def __init__(
        self,
        engine: Engine,
        starts: GroupBeginnings,
        events_of: Callable[[str, str], SessionEvents | None],
        grace_ms: int,
    ) -> None:
        self._engine = engine
        self._starts = starts
        self._events_of = events_of
        self._grace_ms = grace_ms
        #: Groups whose members will be sent a new list in a moment.
        self._changed: set[str] = set()
        self._making = asyncio.Lock()
        #: Time that the latest round took, in seconds.
        self._round_took_s = 0.0
        self._is_retired = False

    def retire(self) -> None:
        """Send nothing from now on."""
        self._is_retired = True

    async def tell(self, group: str, events: SessionEvents) -> None:
        """Send one client the list of a group."""
        async with self._making:
            members = self._engine.groups.members(group)
            events.add_list(group, members.version, await self._encoded(members))

    def tell_all_soon(self, group: str) -> None:
        """Send a group its list in a moment: what changes until then makes no round of its own."""
        if group not in self._changed:
            self._changed.add(group)
            after_s = max(ROUND_S, _ROUND_SHARE * self._round_took_s)
            asyncio.get_running_loop().call_later(after_s, self._begin, group)

    def _begin(self, group: str) -> None:
        if self._is_over:  # a task that begins now might never run
            return
        self._engine.streams.receive(self._tell_all(group), "member-list")

    async def _tell_all(self, group: str) -> None:
        async with self._making:
            self._changed.discard(group)
            if self._is_over:
                return
            began = time.monotonic()
            members = self._engine.groups.members(group)
            event = await self._encoded(members)  # once for all of them
            for client_id in members.client_ids:
                events = self._events_of(group, client_id)
                if events is not None:
                    events.add_list(group, members.version, event)
            self._round_took_s = time.monotonic() - began

    @property
    def _is_over(self) -> bool:
        return self._is_retired or self._engine.handle.is_closed

    async def _encoded(self, members: Members) -> bytes:
        agreement = self._engine.groups.agreement(members.group)
        begun = self._starts.begun(members.group, agreement.topics if agreement else ())
        return await member_list(members, begun, self._grace_ms)


async def member_list(members: Members, begun: Iterable[broker_pb2.TopicBegun], grace_ms: int) -> bytes:
    """Return the list, encoded. Other tasks of the event loop run in between."""
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
