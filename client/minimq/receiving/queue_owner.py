"""Who reads the queues that a member of a group has, as the member sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from minimq.receiving.member_state import Grant
from minimq_common.errors import MiniMQError
from minimq_common.model import MessageQueue


class QueueOwner(Protocol):
    """Who reads the queues of a member. Called by the member's thread; nothing may block."""

    def granted(self, queue: MessageQueue, grant: Grant) -> None:
        """The queue is ours, or ours again: read it from the offset on, or go on where we are if that is further."""

    def revoked(self, queues: Sequence[MessageQueue]) -> None:
        """Others shall have the queues: stop handing out, commit, then call `GroupMember.release`."""

    def lost(self, queues: Sequence[MessageQueue]) -> None:
        """The queues are not ours any more: read them no more. Commits of them will be refused."""

    def trusted(self, broker_name: str, until: float) -> None:
        """Leases of a broker hold until then, on the monotonic clock; after it nothing is handed out under them."""

    def doubted(self, queue: MessageQueue, until: float) -> None:
        """Hand nothing out of the queue after that time, on the monotonic clock, until it is granted again."""

    def refused(self, error: MiniMQError | None) -> None:
        """The member cannot be part of its group, until it hears None."""

    def failed(self, error: MiniMQError) -> None:
        """Something went wrong that the user has to know of; it will be tried again."""

    def tick(self) -> None:
        """A moment has passed."""
