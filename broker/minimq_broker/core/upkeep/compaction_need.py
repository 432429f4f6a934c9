"""Decides whether a round of compaction is worthwhile now. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minimq_broker.core.facts import TopicCompaction
from minimq_broker.core.held.compaction_record import CompactionRecord


class TopicBytes(NamedTuple):
    """The bytes of a compacted topic in sealed segments: those that were compacted, and those that can be now."""

    rules: TopicCompaction
    clean: int
    dirty: int

    @property
    def is_dirty(self) -> bool:
        """True if so much is not compacted that the rules demand a round."""
        return self.dirty > 0 and self.rules.dirty_percent * (self.clean + self.dirty) <= 100 * self.dirty


def needs_compaction(record: CompactionRecord, topics: Sequence[TopicBytes], now_ms: int) -> bool:
    """Tell whether a topic has so much that is not compacted as its rules say, or tombstones whose time is over."""
    if any(each.is_dirty for each in topics):
        # What is younger than the lag would be looked at in vain, again and again.
        return now_ms - record.last_ms >= min(each.rules.min_lag_ms for each in topics if each.dirty) // 2
    stay_ms = min((each.rules.tombstone_ms for each in topics), default=0)
    return bool(record.tombstones and record.rounds) and record.last_ms + max(stay_ms, 1_000) <= now_ms
