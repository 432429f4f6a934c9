"""The strategies of MetaQ, the queue that RocketMQ grew out of, under the names that its users know."""

from __future__ import annotations

from minimq.rebalance.averagely import Averagely
from minimq.rebalance.consistent_hash import ConsistentHash


class MetaQ(Averagely):
    """MetaQ's default: of n queues and m members the first n mod m get one more, members beyond n get none.

    That is what `Averagely` does.
    """

    name = "metaq"


class MetaQConsistentHash(ConsistentHash):
    """MetaQ's consistent hash, on the ring of `ConsistentHash`.

    It stands for the way of dividing, not for the same shares as MetaQ's clients get: MetaQ's partitions have other
    names, hence other hashes.
    """

    name = "metaq_consistent_hash"
