"""The protocol of an allocation strategy, the base of the strategies of minimq, and the allocation of a whole group."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue


class AllocationStrategy(Protocol):
    """Gives a member its share of the queues of one topic.

    Every member calls it by itself, so the answer must depend on the arguments alone; all queues should go to some
    member, and none to two.
    """

    @property
    def name(self) -> str:
        """By which members of a group know that they use the same strategy. Arguments that matter belong in it."""

    def allocate(
        self, group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member.

        The strategies of minimq take queues and members in any order and count each once.

        Args:
            group: the consumer group.
            member: whose share is asked for.
            queues: all queues of one topic, sorted.
            members: all members of the group that subscribe to the topic, sorted.

        Returns:
            Queues of those given, sorted. None when there are no queues, or when the member is not (yet) among the
            members.

        Raises:
            InvalidArgument: the member has no client id, or there are no members.
        """


@runtime_checkable
class OwnerAwareStrategy(Protocol):
    """A strategy that divides all topics of a group at once, and may look at who has which queue now.

    That is a second shape, beside `AllocationStrategy`, and takes its place where `uses_owners` is true.
    """

    @property
    def uses_owners(self) -> bool:
        """True if `allocate_all` counts. False where a strategy hands its work to one that works by topic."""

    def allocate_all(
        self, group: str, queues: Sequence[MessageQueue], members: Sequence[str], owners: Mapping[MessageQueue, str]
    ) -> Mapping[str, list[MessageQueue]]:
        """Return the queues of every member.

        Args:
            group: the consumer group.
            queues: all queues of all topics that these members have in common.
            members: those members of the group.
            owners: which client has a queue now, the same on every member. Queues without an owner are left out;
                queues and clients that are gone do no harm.

        Returns:
            Sorted queues by member, with an entry for each member.

        Raises:
            InvalidArgument: there are no members.
        """


class Division(ABC):
    """The strategies of minimq: checks and order are settled here, the shares by each. Thread-safe."""

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
        """Return the queues of a member, which is one of the members. All are sorted, each once, none is empty."""


def sorted_members(members: Iterable[str]) -> list[str]:
    """Return the members in the order that all go by, each once. Raises `InvalidArgument` when there are none."""
    ordered = sorted(set(members))
    if not ordered:
        raise InvalidArgument("there are no members to allocate queues to")
    return ordered


def names_of(names: Iterable[str], what: str) -> tuple[str, ...]:
    """Return the names that a strategy was given, sorted, each once. Raises `InvalidArgument`."""
    if isinstance(names, str):
        raise InvalidArgument(f"{what}: a list of names is needed, not the one string {names!r}")
    found = tuple(sorted(set(names)))
    if not found or not all(found):
        raise InvalidArgument(f"{what}: at least one name is needed, and none may be empty")
    return found


def uses_owners(strategy: AllocationStrategy) -> bool:
    """Tell whether a strategy wants to know who has which queue now; if not, `owners` may be left empty."""
    return isinstance(strategy, OwnerAwareStrategy) and strategy.uses_owners


def name_of(strategy: AllocationStrategy) -> str:
    """Return the name by which members compare strategies; that of its class for an object that brings none."""
    return str(getattr(strategy, "name", "") or type(strategy).__name__)


def allocate_group(
    strategy: AllocationStrategy,
    group: str,
    member: str,
    queues: Sequence[MessageQueue],
    members: Sequence[str],
    owners: Mapping[MessageQueue, str],
) -> list[MessageQueue]:
    """Return the queues of a member of a group, of topics that all of these members have in common, sorted.

    A strategy that looks at the owners divides all topics together; any other is asked topic by topic, as RocketMQ
    does. Raises `InvalidArgument`.
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
    """Return the queues of every member: what each of them gets from `allocate_group`."""
    ordered = sorted_members(members)
    if isinstance(strategy, OwnerAwareStrategy) and strategy.uses_owners:
        shares = strategy.allocate_all(group, queues, ordered, owners)
        return {member: sorted(set(shares.get(member, ()))) for member in ordered}
    return {member: allocate_group(strategy, group, member, queues, ordered, owners) for member in ordered}
