"""The allocation strategies that brokers know as well as members: pure, chosen by name."""

from __future__ import annotations

from collections.abc import Mapping

from minimq_common.allocation.averagely import Averagely
from minimq_common.allocation.averagely_by_circle import AveragelyByCircle
from minimq_common.allocation.strategy import AllocationStrategy
from minimq_common.errors import InvalidArgument

#: By name; all of them divide each topic by itself and need to know nothing but members and queues.
BY_NAME: Mapping[str, AllocationStrategy] = {strategy.name: strategy for strategy in (Averagely(), AveragelyByCircle())}


def known_to_brokers(name: str) -> AllocationStrategy:
    """Return a strategy by which brokers divide queues for members. Raises `InvalidArgument` for any other."""
    strategy = BY_NAME.get(name)
    if strategy is None:
        raise InvalidArgument(
            f"the server cannot assign queues with {name!r}: it knows {', '.join(BY_NAME)}; by any other strategy "
            "members divide the queues themselves, with assignment 'client'"
        )
    return strategy


__all__ = ["BY_NAME", "AllocationStrategy", "Averagely", "AveragelyByCircle", "known_to_brokers"]
