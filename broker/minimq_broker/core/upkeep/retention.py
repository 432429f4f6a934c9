"""Decides which segments of the CommitLog go or are rewritten, and when the active one is sealed so that it can go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """The rules by which segments are kept."""

    #: Time in ms after its last batch was stored that a segment is kept; 0: forever.
    max_age_ms: int = 0
    #: Bytes of disk that all segments together may use; 0: without a limit.
    max_bytes: int = 0

    def is_over_age(self, stored_ms: int, now_ms: int) -> bool:
        """Tell whether what was stored at a time is too old now; both in ms since 1970."""
        return bool(self.max_age_ms) and stored_ms + self.max_age_ms <= now_ms


FOR_EVER = RetentionRules()

#: Segments that go at once because of their age: so many at least, or a tenth of all. A log that is deleted while it
#: grows needs far fewer; whoever sees that a clock is wrong has time to do something.
AGED_AT_ONCE = 16
_AGED_PART = 10

#: A segment is rewritten for the sake of its disk when at least such a part of it is garbage.
_GARBAGE_PART = 0.5
#: What is smaller than this part of a segment of the usual size is merged with a neighbor.
_SMALL_PART = 16


#: A log position beyond all others: nobody needs entries before it.
NOTHING_NEEDED = 1 << 63


@dataclass(frozen=True, slots=True)
class SegmentRest:
    """The needed part of a sealed segment; sizes are estimates, 0 only if there is nothing."""

    #: Topics that were deleted or keep less: their messages may go, however young the segment is.
    garbage_bytes: int = 0
    aged_bytes: int = 0
    lasting_bytes: int = 0
    is_rest: bool = False


#: Of a segment that can be removed as a whole once it is too old.
NO_REST = SegmentRest()


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """The facts about a segment that the decision needs."""

    start: int
    #: Log position after its last one.
    end: int
    size_bytes: int
    #: When its last batch was stored, in ms since 1970; None when it holds none.
    newest_ms: int | None
    rest: SegmentRest = NO_REST


class Reason(StrEnum):
    """Why a segment goes."""

    AGE = "age"
    SIZE = "size"
    DISK = "disk"


class Expired(NamedTuple):
    """A segment that is to be deleted, or rewritten so that only what is needed of it stays."""

    segment: SegmentFacts
    reason: Reason
    #: About how much of it stays; 0 only if nothing does.
    kept_bytes: int = 0
    #: Its file is removed: nothing stays of it, nor of those before it.
    is_removed: bool = True


def expired(
    segments: Sequence[SegmentFacts], now_ms: int, rules: RetentionRules, *, free_to: int, excess_bytes: int = 0
) -> list[Expired]:
    """Return the segments to be deleted or rewritten now, oldest first; of those that are too old only some at once.

    Nothing goes behind a segment that has to stay, but for what a rewriting has left of some. The last segment, which
    is written to, always stays.
    """
    gone: list[Expired] = []
    left = sum(segment.size_bytes for segment in segments)
    aged = max(AGED_AT_ONCE, len(segments) // _AGED_PART)
    is_first = True
    for segment in segments[:-1]:
        if segment.end > free_to:
            break
        is_old, rest = _is_over_age(segment, now_ms, rules), segment.rest
        reason: Reason | None = None
        if is_old and aged and not _is_left_by(rest, rest.aged_bytes, is_first=is_first):
            reason = Reason.AGE
            aged -= 1
        elif _is_left_by(rest, rest.lasting_bytes, is_first=is_first) and rest.aged_bytes == rest.lasting_bytes:
            is_first = False  # nothing can be taken from it, whatever its age
            continue
        elif rules.max_bytes and left > rules.max_bytes:
            reason = Reason.SIZE
        elif excess_bytes > 0:
            reason = Reason.DISK
        kept = rest.aged_bytes if reason is Reason.AGE else rest.lasting_bytes
        if reason is not None:
            gone.append(Expired(segment, reason, kept, is_removed=is_first and not kept))
            left -= segment.size_bytes - kept
            excess_bytes -= segment.size_bytes - kept
        elif not is_old or not rest.is_rest:
            break
        is_first = is_first and reason is not None and not kept
    return gone


def early_bytes(excess_bytes: int, segments: Sequence[SegmentFacts], grown_bytes: int) -> int:
    """Return how much of a log to delete early; 0 if that would not help, or others fill the disk bit by bit."""
    deletable = sum(segment.size_bytes for segment in segments[:-1])
    if not 0 < excess_bytes <= deletable or 2 * grown_bytes < segments[0].size_bytes:
        return 0
    return min(excess_bytes, 2 * grown_bytes)


def _is_left_by(rest: SegmentRest, kept_bytes: int, *, is_first: bool) -> bool:
    return rest.is_rest and (kept_bytes > 0 or not is_first)


def is_outdated(active: SegmentFacts, now_ms: int, rules: RetentionRules) -> bool:
    """Tell whether to seal the active segment because all its batches have expired: nothing else does without sends."""
    return active.newest_ms is not None and _is_over_age(active, now_ms, rules)


def _is_over_age(segment: SegmentFacts, now_ms: int, rules: RetentionRules) -> bool:
    if segment.newest_ms is None:
        return bool(rules.max_age_ms)
    return rules.is_over_age(segment.newest_ms, now_ms)


def is_worthwhile(used_bytes: int, garbage_bytes: int, segment_bytes: int) -> bool:
    """Return whether enough of a segment is garbage for a rewriting."""
    return garbage_bytes >= max(_GARBAGE_PART * used_bytes, segment_bytes // _SMALL_PART)


def with_neighbors(kept: Sequence[tuple[int, bool]], index: int, segment_bytes: int) -> range:
    """Return the segments rewritten with one: smaller rests ahead, so that a byte is written anew as sizes double."""
    first, total = index, kept[index][0]
    while first and kept[first - 1][1]:
        size = kept[first - 1][0]
        if size > max(total, segment_bytes // _SMALL_PART) or total + size > segment_bytes:
            break
        total += size
        first -= 1
    return range(first, index + 1)
