"""The protocols of allocation strategies, the base class of minimq's own, and the allocation of a whole group."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue


class AllocationStrategy(Protocol):
    """Computes a member's share of the queues of one topic.

    Every member calls it on its own, so the result must depend on the arguments alone. Over all members, each queue
    should be allocated exactly once.
    """

    @property
    def name(self) -> str:
        """Name by which members check that they use the same strategy. It should include arguments that matter."""

    def allocate(
        self, group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member.

        The strategies of minimq accept queues and members in any order, and ignore duplicates.

        Args:
            group: the consumer group.
            member: client id of the member.
            queues: all queues of one topic, sorted.
            members: all members of the group that subscribe to the topic, sorted.

        Returns:
            Some of `queues`, sorted. Empty if there are no queues, or the member is not (yet) among the members.

        Raises:
            InvalidArgument: the member has no client id, or there are no members.
        """


@runtime_checkable
class OwnerAwareStrategy(Protocol):
    """A strategy that divides all topics of a group at once, and knows the current owners of the queues.

    If `uses_owners` is true, consumers call `allocate_all` instead of `AllocationStrategy.allocate`.
    """

    @property
    def uses_owners(self) -> bool:
        """True if `allocate_all` is to be used. False for a wrapper whose inner strategy works by topic."""

    def allocate_all(
        self, group: str, queues: Sequence[MessageQueue], members: Sequence[str], owners: Mapping[MessageQueue, str]
    ) -> Mapping[str, list[MessageQueue]]:
        """Return the queues of every member.

        Args:
            group: the consumer group.
            queues: all queues of the topics that all these members subscribe to.
            members: client ids of members of the group.
            owners: the current owner of each queue, the same on every member. Queues without an owner are missing;
                queues and clients that no longer exist are ignored.

        Returns:
            Sorted queues by member, with an entry for each member.

        Raises:
            InvalidArgument: there are no members.
        """


class Division(ABC):
    """Base class of minimq's strategies: checks and sorts the arguments. Thread-safe."""

    name: str

    def allocate(
        self, group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member; see `AllocationStrategy.allocate`."""
        if not member:
            raise InvalidArgument("the member has no client id")
        ordered = sorted_members(members)
        if member not in ordered or not queues:
            return []
        return sorted(self._share(group, member, sorted(set(queues)), ordered))

    @abstractmethod
    def _share(self, group: str, member: str, queues: list[MessageQueue], members: list[str]) -> Iterable[MessageQueue]:
        """Return the queues of `member`, one of `members`. Both lists are sorted, unique and not empty."""


def sorted_members(members: Iterable[str]) -> list[str]:
    """Return the members sorted and unique, the order that all members use. Raises `InvalidArgument` if empty."""
    ordered = sorted(set(members))
    if not ordered:
        raise InvalidArgument("there are no members to allocate queues to")
    return ordered


def names_of(names: Iterable[str], what: str) -> tuple[str, ...]:
    """Return the names sorted and unique. Raises `InvalidArgument` if there are none, or one is empty."""
    if isinstance(names, str):
        raise InvalidArgument(f"{what}: a list of names is needed, not the one string {names!r}")
    found = tuple(sorted(set(names)))
    if not found or not all(found):
        raise InvalidArgument(f"{what}: at least one name is needed, and none may be empty")
    return found


def uses_owners(strategy: AllocationStrategy) -> bool:
    """Return whether a strategy uses the current owners; if not, `owners` may be empty."""
    return isinstance(strategy, OwnerAwareStrategy) and strategy.uses_owners


def name_of(strategy: AllocationStrategy) -> str:
    """Return the name that members compare; by default that of the strategy's class."""
    return str(getattr(strategy, "name", "") or type(strategy).__name__)


def allocate_group(
    strategy: AllocationStrategy,
    group: str,
    member: str,
    queues: Sequence[MessageQueue],
    members: Sequence[str],
    owners: Mapping[MessageQueue, str],
) -> list[MessageQueue]:
    """Return the queues of one member, sorted; all of `members` subscribe to the topics of `queues`.

    A strategy that uses owners divides all topics together; any other is called topic by topic, as in RocketMQ.
    Raises `InvalidArgument`.
    """
    if not member:
        raise InvalidArgument("the member has no client id")
    ordered = sorted_members(members)
    if member not in ordered:
        return []
    if isinstance(strategy, OwnerAwareStrategy) and strategy.uses_owners:
        return sorted(set(strategy.allocate_all(group, queues, ordered, owners).get(member, ())))
    mine: set[MessageQueue] = set()
    for _, topic in itertools.groupby(sorted(set(queues)), key=lambda queue: queue.topic):
        mine.update(strategy.allocate(group, member, list(topic), ordered))
    return sorted(mine)


def allocate_everyone(
    strategy: AllocationStrategy,
    group: str,
    queues: Sequence[MessageQueue],
    members: Sequence[str],
    owners: Mapping[MessageQueue, str],
) -> dict[str, list[MessageQueue]]:
    """Return the queues of every member, as `allocate_group` returns them to each."""
    ordered = sorted_members(members)
    if isinstance(strategy, OwnerAwareStrategy) and strategy.uses_owners:
        shares = strategy.allocate_all(group, queues, ordered, owners)
        return {member: sorted(set(shares.get(member, ()))) for member in ordered}
    return {member: allocate_group(strategy, group, member, queues, ordered, owners) for member in ordered}
