"""Contiguous blocks of equal size; the first members get one more when it does not come out even."""

from __future__ import annotations

from collections.abc import Sequence

from minimq.rebalance.strategy import rank
from minimq_common.model import MessageQueue


class Averagely:
    """The default strategy."""

    name = "averagely"

    def allocate(
        self, group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the block of a member; see `AllocationStrategy.allocate`."""
        place = rank(member, queues, members)
        if place is None:
            return []
        size, longer = divmod(len(queues), len(members))
        start = place * size + min(place, longer)
        return list(queues[start : start + size + (place < longer)])
