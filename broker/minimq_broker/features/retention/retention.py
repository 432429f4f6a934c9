"""Decides which segments of the CommitLog to delete or rewrite, and when to seal the active one so that it expires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Limits on the age and size of segments."""

    #: Counts from the store time of the last batch in a segment; 0: forever.
    max_age_ms: int = 0
    #: Disk space of all segments; 0: no limit.
    max_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.max_age_ms or self.max_bytes)

    def is_over_age(self, stored_ms: int, now_ms: int) -> bool:
        """Return whether data stored at a time has expired; both times in ms since 1970."""
        return bool(self.max_age_ms) and stored_ms + self.max_age_ms <= now_ms


FOR_EVER = RetentionRules()


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """The options of retention."""

    rules: RetentionRules = FOR_EVER
    dead_letters: RetentionRules = FOR_EVER
    #: Minimum age of a segment that is rewritten only to remove garbage: how long a slave may be offline without
    #: having to copy everything.
    rewrite_after_s: float = 3600.0


#: One call expires at most this many segments by age, or a tenth of all if that is more. A growing log needs far fewer,
#: and if the clock is wrong, operators have time to react.
AGED_AT_ONCE = 16
_AGED_DIVISOR = 10

#: Rewrite a segment to free disk space if at least this share of it is garbage.
_MIN_GARBAGE_SHARE = 0.5
#: Segments below this fraction (1/16) of the usual size are small: merged with a neighbor.
_SMALL_DIVISOR = 16


@dataclass(frozen=True, slots=True)
class LiveData:
    """The needed parts of a sealed segment. Sizes are estimates, but 0 is exact."""

    #: Messages of topics that were deleted or have a shorter retention: deletable at any age of the segment.
    garbage_bytes: int = 0
    #: Kept if the segment expires by age; includes `lasting_bytes`.
    aged_bytes: int = 0
    #: Kept even if the segment has to go because of size or disk.
    lasting_bytes: int = 0
    #: Left by a rewriting, and has only topics that outlive the age of segments.
    is_rest: bool = False


#: Of a segment that can be removed as a whole once it expires.
NO_REST = LiveData()


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    start: int
    #: Log position after its last entry.
    end: int
    size_bytes: int
    #: Store time of its last batch, in ms since 1970; None without batches.
    newest_ms: int | None
    rest: LiveData = NO_REST


class Reason(StrEnum):
    AGE = "age"
    SIZE = "size"
    DISK = "disk"


class Expired(NamedTuple):
    """A segment to be deleted, or to be rewritten with only the entries that are still needed."""

    segment: SegmentInfo
    #: None: only garbage is removed.
    reason: Reason | None
    #: Estimated size after the rewriting; 0 only if nothing is kept.
    kept_bytes: int = 0
    #: Delete the file: nothing of it, or of the segments before it, is kept.
    is_removed: bool = True


def expired(
    segments: Sequence[SegmentInfo], now_ms: int, rules: RetentionRules, *, free_to: int, excess_bytes: int = 0
) -> list[Expired]:
    """Return the segments to delete or rewrite now, oldest first; by age only some at once, see `AGED_AT_ONCE`."""
    gone: list[Expired] = []
    left = sum(segment.size_bytes for segment in segments)
    aged = max(AGED_AT_ONCE, len(segments) // _AGED_DIVISOR)
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
            is_first = False  # nothing can be deleted from it, whatever its age
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


def early_bytes(excess_bytes: int, segments: Sequence[SegmentInfo], grown_bytes: int) -> int:
    """Return how many bytes to delete early; 0 if that cannot help, or it is not this log that fills the disk."""
    deletable = sum(segment.size_bytes for segment in segments[:-1])
    if not 0 < excess_bytes <= deletable or 2 * grown_bytes < segments[0].size_bytes:
        return 0
    return min(excess_bytes, 2 * grown_bytes)


def _is_left_by(rest: LiveData, kept_bytes: int, *, is_first: bool) -> bool:
    return rest.is_rest and (kept_bytes > 0 or not is_first)


def is_outdated(active: SegmentInfo, now_ms: int, rules: RetentionRules) -> bool:
    """Return whether to seal the active segment as all its batches expired. Without sends, nothing else seals it."""
    return active.newest_ms is not None and _is_over_age(active, now_ms, rules)


def _is_over_age(segment: SegmentInfo, now_ms: int, rules: RetentionRules) -> bool:
    if segment.newest_ms is None:
        return bool(rules.max_age_ms)
    return rules.is_over_age(segment.newest_ms, now_ms)


def is_worthwhile(used_bytes: int, garbage_bytes: int, segment_bytes: int) -> bool:
    return garbage_bytes >= max(_MIN_GARBAGE_SHARE * used_bytes, segment_bytes // _SMALL_DIVISOR)


def with_neighbors(kept: Sequence[tuple[int, bool]], index: int, segment_bytes: int) -> range:
    """Return the segments to rewrite with the one at `index`: the rests before it that are not larger."""
    first, total = index, kept[index][0]
    while first and kept[first - 1][1]:
        size = kept[first - 1][0]
        if size > max(total, segment_bytes // _SMALL_DIVISOR) or total + size > segment_bytes:
            break
        total += size
        first -= 1
    return range(first, index + 1)
