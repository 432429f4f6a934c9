"""Allocation strategies of consumer groups: pure, chosen by name or created from their class.

Every member computes its share on its own, from the same lists of queues and members. So all members of a group need
the same strategy with the same arguments.

    name                   class                arguments
    averagely              Averagely            none; the default: contiguous blocks
    averagely_by_circle    AveragelyByCircle    none; queues assigned round-robin
    sticky                 Sticky               none; even over all topics together, fewest moves
    consistent_hash        ConsistentHash       virtual_nodes; few moves, uneven
    by_config              ByConfig             queues; a fixed list
    machine_room           MachineRoom          rooms; only the queues of these machine rooms
    machine_room_nearby    MachineRoomNearby    inner, room_of_member, room_of_broker; queues to members in their room
    designated             Designated           consumers, inner, fall_back; only the named clients read
    metaq                  MetaQ                none; MetaQ's name for averagely
    metaq_consistent_hash  MetaQConsistentHash  virtual_nodes; MetaQ's name for consistent_hash

All strategies except `Sticky` divide each topic on its own, so remainders favour the same members in every topic: with
`Averagely` those whose names sort first.

Any other object that implements `AllocationStrategy` may be used instead. Consumers call `allocate_group`, which
supports both protocols of strategies.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from minimq.rebalance.strategies import (
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ConsistentHash,
    Designated,
    MachineRoom,
    MachineRoomNearby,
    MetaQ,
    MetaQConsistentHash,
    Sticky,
)
from minimq.rebalance.strategy import (
    AllocationStrategy,
    OwnerAwareStrategy,
    allocate_everyone,
    allocate_group,
    name_of,
    uses_owners,
)
from minimq_common.errors import InvalidArgument

_STRATEGIES: Mapping[str, Callable[..., AllocationStrategy]] = {
    "averagely": Averagely,
    "averagely_by_circle": AveragelyByCircle,
    "by_config": ByConfig,
    "consistent_hash": ConsistentHash,
    "designated": Designated,
    "machine_room": MachineRoom,
    "machine_room_nearby": MachineRoomNearby,
    "metaq": MetaQ,
    "metaq_consistent_hash": MetaQConsistentHash,
    "sticky": Sticky,
}


def allocation_strategy(name: str, **arguments: object) -> AllocationStrategy:
    """Return the strategy of that name.

    Args:
        name: one of the table above.
        arguments: arguments of the strategy's class, by name. `inner` may be the name of a strategy.

    Raises:
        InvalidArgument: there is no such strategy, or it does not take these arguments, or needs others.
    """
    strategy = _STRATEGIES.get(name)
    if strategy is None:
        raise InvalidArgument(f"no allocation strategy {name!r}: there are {', '.join(sorted(_STRATEGIES))}")
    signature = inspect.signature(strategy)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "no arguments"
        raise InvalidArgument(f"allocation strategy {name!r}: {error}; it takes {takes}") from None
    inner = arguments.get("inner")
    if isinstance(inner, str):
        arguments["inner"] = allocation_strategy(inner)
    return strategy(**arguments)


__all__ = [
    "AllocationStrategy",
    "Averagely",
    "AveragelyByCircle",
    "ByConfig",
    "ConsistentHash",
    "Designated",
    "MachineRoom",
    "MachineRoomNearby",
    "MetaQ",
    "MetaQConsistentHash",
    "OwnerAwareStrategy",
    "Sticky",
    "allocate_everyone",
    "allocate_group",
    "allocation_strategy",
    "name_of",
    "uses_owners",
]
