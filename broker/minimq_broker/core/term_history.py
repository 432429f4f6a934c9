"""The terms in which a log was written, and the position up to which two logs are the same.

A term has one master, and only the master decides what comes next in the log. So two logs that have a term which began
at the same position are the same up to where the first of them leaves that term.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

#: Terms remembered of one log; a follower whose last common term is older copies everything anew.
MAX_TERMS = 1_000


class TermStart(msgspec.Struct, frozen=True, array_like=True):
    """The log position of the entry that begins a term."""

    term: int
    position: int


def common_point(mine: Sequence[TermStart], my_end: int, theirs: Sequence[TermStart], their_end: int) -> int | None:
    """Return the log position up to which two logs hold the same entries, None when that cannot be told.

    Whether both still store what is around it is not considered here. An empty log is the beginning of every other.
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
