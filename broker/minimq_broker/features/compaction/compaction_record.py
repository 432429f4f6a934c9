"""The finished compaction rounds, and whether to start another one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from minimq_broker.features.compaction.topic_compaction import TopicCompaction

#: Remembered rounds. If there are more, every other old one is forgotten, so that tombstones stay a little longer.
_MAX_ROUNDS = 1_000


class Round(msgspec.Struct, frozen=True, array_like=True):
    """A compaction round: the log position up to which it went, and when it ended, in ms since 1970."""

    end: int
    at_ms: int


class CompactionRecord(msgspec.Struct, frozen=True):
    """The finished rounds."""

    rounds: tuple[Round, ...] = ()
    #: End of the latest round, in ms since 1970; 0 without rounds.
    last_ms: int = 0
    tombstones: int = 0
    #: (topic id, queue id) of queues in which an older message could not be removed, so tombstones must stay.
    held: tuple[tuple[int, int], ...] = ()

    @property
    def position(self) -> int:
        """Log position up to which the log is compacted."""
        return self.rounds[-1].end if self.rounds else 0

    def since_ms(self, position: int, now_ms: int) -> int:
        """Return when the entry at a log position was first compacted, `now_ms` if this is the first time."""
        index = bisect_right(self.rounds, position, key=lambda item: item.end)
        return self.rounds[index].at_ms if index < len(self.rounds) else now_ms

    def after(self, end: int, now_ms: int, tombstones: int, held: Sequence[tuple[int, int]]) -> CompactionRecord:
        rounds = self.rounds
        if end > self.position:
            rounds = (*rounds, Round(end, now_ms))
        if len(rounds) > _MAX_ROUNDS:  # each remaining one also stands for the one before it
            rounds = (*rounds[1 : _MAX_ROUNDS // 2 : 2], *rounds[_MAX_ROUNDS // 2 :])
        return CompactionRecord(rounds, now_ms, tombstones, tuple(sorted({*self.held, *held})))


class TopicBytes(NamedTuple):
    """The bytes of a compacted topic in sealed segments."""

    rules: TopicCompaction
    #: Already compacted.
    clean: int
    #: Can be compacted now.
    dirty: int

    @property
    def is_dirty(self) -> bool:
        """True if the share of dirty bytes calls for a round."""
        return self.dirty > 0 and self.rules.dirty_percent * (self.clean + self.dirty) <= 100 * self.dirty


def needs_compaction(record: CompactionRecord, topics: Sequence[TopicBytes], now_ms: int) -> bool:
    """Return whether some topic is dirty enough for a round, or some tombstones have expired."""
    if any(each.is_dirty for each in topics):
        # Rounds in quick succession would examine messages younger than the lag again and again.
        return now_ms - record.last_ms >= min(each.rules.min_lag_ms for each in topics if each.dirty) // 2
    stay_ms = min((each.rules.tombstone_ms for each in topics), default=0)
    return bool(record.tombstones and record.rounds) and record.last_ms + max(stay_ms, 1_000) <= now_ms
