"""How a consumer group divides queues among its members: pure strategies, chosen by name."""

from __future__ import annotations

from minimq.rebalance.averagely import Averagely
from minimq.rebalance.strategy import AllocationStrategy
from minimq_common.errors import InvalidArgument

_STRATEGIES: dict[str, type[AllocationStrategy]] = {"averagely": Averagely}


def allocation(name: str) -> AllocationStrategy:
    """Return the strategy of that name. Raises `InvalidArgument` with the list of names."""
    strategy = _STRATEGIES.get(name)
    if strategy is None:
        raise InvalidArgument(f"no allocation strategy {name!r}: there are {', '.join(sorted(_STRATEGIES))}")
    return strategy()


__all__ = ["AllocationStrategy", "Averagely", "allocation"]
