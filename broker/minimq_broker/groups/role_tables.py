"""The owners of groups and queues in one role of the broker: members, leases, and claims."""

from __future__ import annotations

from minimq_broker.groups.claims import Claims
from minimq_broker.groups.groups import GroupTable
from minimq_broker.groups.leases import LeaseKey, LeaseTable
from minimq_broker.groups.sessions import Session
from minimq_broker.state.state import State
from minimq_common.errors import Fenced
from minimq_common.model import first_epoch
from minimq_common.security.caller import current_caller


class RoleTables:
    """Made for each role, and empty then. Belongs to the event loop."""

    def __init__(self, term: int, until: float, state: State) -> None:
        """`until` is the loop time until which the members of the last role may return."""
        self.groups = GroupTable(first_epoch(term), until, state.agreements.copy())
        self.leases = LeaseTable(term, until, frozenset(state.started.copy()))
        self.claims = Claims()
        #: The sessions of members, and of clients that were rejected, by (group, client id).
        self.sessions: dict[tuple[str, str], Session] = {}

    def check_lease(self, key: LeaseKey, client_id: str, epoch: int) -> None:
        """Raise `Fenced` unless a member of the current caller owns a queue under this epoch, which is not secret."""
        self.leases.check(key, client_id, epoch)
        session = self.sessions.get((key.group, client_id))
        if session is not None and session.user != current_caller().user:
            raise Fenced(f"the lease of {client_id} in group {key.group} belongs to another user")

    def retain_topics(self, state: State) -> None:
        """Forget the leases of deleted topics."""
        self.leases.retain_topics({topic.topic_id for topic in state.topics.copy().values()})
