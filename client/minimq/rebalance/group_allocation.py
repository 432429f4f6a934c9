"""The allocation of a whole group: all topics, by a strategy of either shape."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from minimq.rebalance.strategy import AllocationStrategy, OwnerAwareStrategy, sorted_members
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue


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
    """Return the queues of one of several members of a group that have these topics in common.

    A strategy that looks at the owners divides all topics together; any other is asked topic by topic, as RocketMQ
    does.

    Args:
        strategy: any of this package, or another object with `allocate`.
        group: the consumer group.
        member: whose share is asked for.
        queues: all queues of these topics.
        members: all members that subscribe to them.
        owners: which client has a queue now, the same on every member; see `OwnerAwareStrategy.allocate_all`.

    Returns:
        Queues, sorted, each once; none when the member is not (yet) among the members.

    Raises:
        InvalidArgument: the member has no client id, or there are no members.
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
    """Return the queues of every member: what each of them gets from `allocate_group`, whose arguments these are."""
    ordered = sorted_members(members)
    if isinstance(strategy, OwnerAwareStrategy) and strategy.uses_owners:
        shares = strategy.allocate_all(group, queues, ordered, owners)
        return {member: sorted(set(shares.get(member, ()))) for member in ordered}
    return {member: allocate_group(strategy, group, member, queues, ordered, owners) for member in ordered}
