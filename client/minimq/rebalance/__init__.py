"""Allocation strategies of consumer groups: pure, chosen by name or created from their class.

Every member computes its share on its own, from the same lists of queues and members. So all members of a group need
the same strategy with the same arguments. All strategies except `Sticky` divide each topic on its own, so remainders
favour the same members in every topic: with `Averagely` those whose names sort first.

Any other object that implements `AllocationStrategy` may be used instead. Consumers call `allocate_group`, which
supports both protocols of strategies.
"""

from __future__ import annotations

import inspect

from minimq.rebalance.strategies import STRATEGIES
from minimq.rebalance.strategy import AllocationStrategy, allocate_group, name_of
from minimq_common.errors import InvalidArgument

__all__ = ["AllocationStrategy", "allocate_group", "allocation_strategy", "name_of"]


def allocation_strategy(name: str, **arguments: object) -> AllocationStrategy:
    """Return the strategy of that name.

    Args:
        name: such as "averagely", the default, or "sticky"; see docs/consuming.md.
        arguments: arguments of the strategy's class, by name. `inner` may be the name of a strategy.

    Raises:
        InvalidArgument: there is no such strategy, or it does not take these arguments, or needs others.
    """
    strategy = STRATEGIES.get(name)
    if strategy is None:
        raise InvalidArgument(f"no allocation strategy {name!r}: there are {', '.join(sorted(STRATEGIES))}")
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
