"""What a strategy is, and the checks that all share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue


class AllocationStrategy(Protocol):
    """Gives a member its share of the queues.

    Every member calls it by itself, so the answer must depend on the arguments alone; all queues must go to some
    member, and none to two.
    """

    @property
    def name(self) -> str:
        """By which members of a group know that they use the same strategy."""

    def allocate(
        self, group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member.

        Args:
            group: the consumer group.
            member: whose share is asked for.
            queues: all queues of one topic, sorted.
            members: all members of the group, sorted.

        Raises:
            InvalidArgument: the member has no name, or there are no queues or no members.
        """


def rank(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> int | None:
    """Return the place of a member, None when it is not (yet) in the list. Raises `InvalidArgument`."""
    if not member:
        raise InvalidArgument("the member has no client id")
    if not queues:
        raise InvalidArgument("there are no queues to allocate")
    if not members:
        raise InvalidArgument("there are no members to allocate queues to")
    return members.index(member) if member in members else None
