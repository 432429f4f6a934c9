"""The terms in which a log was written, and the position up to which two logs agree."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

#: Terms remembered per log. A follower whose last common term is older copies everything again.
MAX_TERMS = 1_000


class TermStart(msgspec.Struct, frozen=True, array_like=True):
    term: int
    position: int


def common_point(mine: Sequence[TermStart], my_end: int, theirs: Sequence[TermStart], their_end: int) -> int | None:
    """Return the log position up to which two logs have the same entries, None if it is unknown.

    The entries around it may have been deleted in either log. An empty log agrees with every other at position 0.
    """
    if not my_end or not their_end:
        return 0
    ends = dict(_with_ends(theirs, their_end))
    for start, end in reversed(_with_ends(mine, my_end)):
        if start in ends:
            return min(end, ends[start])
    return None


def _with_ends(starts: Sequence[TermStart], end: int) -> list[tuple[TermStart, int]]:
    return list(zip(starts, [*(start.position for start in starts[1:]), end], strict=False))
