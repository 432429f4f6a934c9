"""The rounds of compaction that are done: up to where the log is compacted, and since when."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

#: Rounds that are remembered; of more, every other one is forgotten, so that tombstones stay a little longer.
_MOST_ROUNDS = 1_000


class Round(msgspec.Struct, frozen=True, array_like=True):
    """A round of compaction: the log position up to which it went, and when it ended, in ms since 1970."""

    end: int
    at_ms: int


class CompactionRecord(msgspec.Struct, frozen=True):
    """The rounds that are done."""

    rounds: tuple[Round, ...] = ()
    #: When the latest one ended, in ms since 1970; 0 if there was none.
    last_ms: int = 0
    tombstones: int = 0
    #: Topic ids and queue ids of queues in which an older message of some key could not be removed, so that no
    #: tombstone may vanish.
    held: tuple[tuple[int, int], ...] = ()

    @property
    def position(self) -> int:
        """Log position up to which the log is compacted."""
        return self.rounds[-1].end if self.rounds else 0

    def since_ms(self, position: int, now_ms: int) -> int:
        """Return when an entry was compacted first; the time if it is now."""
        index = bisect_right(self.rounds, position, key=lambda item: item.end)
        return self.rounds[index].at_ms if index < len(self.rounds) else now_ms

    def after(self, end: int, now_ms: int, tombstones: int, held: Sequence[tuple[int, int]]) -> CompactionRecord:
        """Return the record after another round."""
        rounds = self.rounds
        if end > self.position:
            rounds = (*rounds, Round(end, now_ms))
        if len(rounds) > _MOST_ROUNDS:  # the later ones stand for those before them
            rounds = (*rounds[1 : _MOST_ROUNDS // 2 : 2], *rounds[_MOST_ROUNDS // 2 :])
        return CompactionRecord(rounds, now_ms, tombstones, tuple(sorted({*self.held, *held})))
