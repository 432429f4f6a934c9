"""Figures of the writer, for the metrics of a broker."""

from __future__ import annotations

from minimq_broker.store.commit_group import CommitGroup
from minimq_common.histogram import BYTES, COUNTS, SECONDS, Histogram


class CommitFigures:
    """Counted once for each commit, by the writer's thread; any thread looks."""

    def __init__(self, now: float) -> None:
        self.seconds = Histogram(SECONDS)
        self.messages = Histogram(COUNTS)
        self.sizes = Histogram(BYTES)
        self.lost = 0
        self.saved_at = now

    def committed(self, group: CommitGroup, began_at: float, stored_at: float) -> None:
        """Count a commit, and note its times, on the monotonic clock, for the spans of its batches."""
        self.seconds.add(stored_at - began_at)
        self.messages.add(group.messages)
        self.sizes.add(group.size)
        self.lost += len(group.lost)
        for times in group.times:
            times.began_at, times.stored_at = began_at, stored_at
