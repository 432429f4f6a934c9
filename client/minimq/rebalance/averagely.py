"""Contiguous blocks of equal size; the first members get one more when it does not come out even."""

from __future__ import annotations

from collections.abc import Iterable

from minimq.rebalance.strategy import Division
from minimq_common.model import MessageQueue


class Averagely(Division):
    """The default strategy: blocks, the same ones as RocketMQ's.

    It divides each topic by itself. In a group with many topics the first members get the one more of each of them,
    and with topics of one queue the first member gets all: `Sticky` divides all topics together.
    """

    name = "averagely"

    def _share(self, group: str, member: str, queues: list[MessageQueue], members: list[str]) -> Iterable[MessageQueue]:
        size, longer = divmod(len(queues), len(members))
        place = members.index(member)
        start = place * size + min(place, longer)
        return queues[start : start + size + (place < longer)]
