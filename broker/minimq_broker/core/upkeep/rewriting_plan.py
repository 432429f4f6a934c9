"""Decides which segments are rewritten, and which neighbors with them, so that there are never many small ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: A segment is rewritten for the sake of its disk when at least such a part of it is garbage.
_GARBAGE_PART = 0.5
#: What is smaller than this part of a segment of the usual size is merged with a neighbor.
_SMALL_PART = 16


@dataclass(frozen=True, slots=True)
class SegmentRest:
    """The needed part of a sealed segment; sizes are estimates, 0 only if there is nothing."""

    #: Of topics that were deleted, or keep less: needed by nobody, whatever the age of the segment.
    garbage_bytes: int = 0
    aged_bytes: int = 0
    lasting_bytes: int = 0
    is_rest: bool = False


#: Of a segment that can be removed as a whole once it is too old.
NO_REST = SegmentRest()


def is_worthwhile(used_bytes: int, garbage_bytes: int, segment_bytes: int) -> bool:
    """Return whether enough of a segment is garbage for a rewriting."""
    return garbage_bytes >= max(_GARBAGE_PART * used_bytes, segment_bytes // _SMALL_PART)


def with_neighbors(kept: Sequence[tuple[int, bool]], index: int, segment_bytes: int) -> range:
    """Return which segments are rewritten together with one: it, and rests ahead of it that are not larger.

    So a byte is written anew only each time that what it is in has doubled.
    """
    first, total = index, kept[index][0]
    while first and kept[first - 1][1]:
        size = kept[first - 1][0]
        if size > max(total, segment_bytes // _SMALL_PART) or total + size > segment_bytes:
            break
        total += size
        first -= 1
    return range(first, index + 1)
