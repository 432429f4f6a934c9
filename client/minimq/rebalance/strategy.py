"""The protocol of a strategy, from `minimq_common.allocation.strategy`, since brokers divide queues as well."""

from minimq_common.allocation.strategy import (
    AllocationStrategy,
    Division,
    OwnerAwareStrategy,
    names_of,
    sorted_members,
)

__all__ = ["AllocationStrategy", "Division", "OwnerAwareStrategy", "names_of", "sorted_members"]
