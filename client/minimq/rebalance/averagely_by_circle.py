"""Queues dealt out one by one, as cards are."""

from __future__ import annotations

from collections.abc import Iterable

from minimq.rebalance.strategy import Division
from minimq_common.model import MessageQueue


class AveragelyByCircle(Division):
    """As even as `Averagely`, but each member has queues of many brokers, so that a slow broker slows all alike."""

    name = "averagely_by_circle"

    def _share(self, group: str, member: str, queues: list[MessageQueue], members: list[str]) -> Iterable[MessageQueue]:
        return queues[members.index(member) :: len(members)]
