"""Remembers since when each lease of a queue has been seen."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from minimq.administration.group_descriptions import GroupDescription, GroupQueueDescription
from minimq_common.model import MessageQueue


class LeaseSightings:
    """When each lease was seen first. Not thread-safe.

    Brokers do not tell when they granted a lease, only its epoch, which is another for each lease.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[str, MessageQueue], tuple[str, int, datetime]] = {}

    def see(self, groups: Iterable[GroupDescription], at: datetime) -> None:
        """Note the leases of all groups, and forget those that have ended."""
        former, self._first = self._first, {}
        for group in groups:
            for queue in group.queues:
                if queue.owner is None:
                    continue
                seen = former.get((group.group, queue.queue))
                if seen is None or seen[:2] != (queue.owner, queue.epoch):
                    seen = (queue.owner, queue.epoch, at)
                self._first[group.group, queue.queue] = seen

    def since(self, group: str, queue: GroupQueueDescription) -> datetime | None:
        """Return when the lease of a queue was seen first; None if there is none, or it is newer than the last look."""
        seen = self._first.get((group, queue.queue))
        return seen[2] if seen is not None and seen[:2] == (queue.owner, queue.epoch) else None
