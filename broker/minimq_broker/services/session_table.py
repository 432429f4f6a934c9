"""The sessions of a broker: by client, and by the groups in which a client goes by its id."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from minimq_broker.services.session_events import SessionEvents
from minimq_common.errors import GroupConflict
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
