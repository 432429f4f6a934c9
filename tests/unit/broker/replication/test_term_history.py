"""The position up to which two logs are the same: by their terms alone, against the logs themselves."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from minimq_broker.replication.term_history import TermStart, common_point
from support.cases import for_each

Starts = list[tuple[int, int]]


class Entry(NamedTuple):
    """An entry of a log: in which term it was written, as the how many-th, and how large it is."""

    term: int
    number: int
    size: int


def describe(log: list[Entry]) -> tuple[list[TermStart], int]:
    """Return the terms and the end of a log."""
    starts, position = [], 0
    for entry in log:
        if entry.number == 0:
            starts.append(TermStart(entry.term, position))
        position += entry.size
    return starts, position


def common(mine: list[Entry], theirs: list[Entry]) -> list[Entry]:
    """Return the entries that two logs begin with."""
    same = 0
    while same < min(len(mine), len(theirs)) and mine[same] == theirs[same]:
        same += 1
    return mine[:same]


@given(
    st.lists(
        st.tuples(st.sampled_from(["lead", "append", "append", "copy", "copy"]), st.integers(0, 2), st.integers(1, 9)),
        max_size=60,
    )
)
def test_logs_grown_from_a_common_one_part_where_it_is_said(steps: list[tuple[str, int, int]]) -> None:
    """Three replicas, of which any may lead at any time; they copy some of the log of the one that leads."""
    logs: list[list[Entry]] = [[], [], []]
    leader, term, number = 0, 0, 0
    for step, which, size in steps:
        if step == "lead" or term == 0:
            leader, term, number = (which if term else 0), term + 1, 0
        if step in ("lead", "append") or number == 0:
            logs[leader].append(Entry(term, number, size))
            number += 1
        elif which != leader:
            kept = common(logs[which], logs[leader])
            logs[which] = logs[leader][: len(kept) + size]
    for mine in logs:
        for theirs in logs:
            point = common_point(*describe(mine), *describe(theirs))
            # Two that were founded apart have nothing in common, not even their begin.
            assert (point or 0) == sum(entry.size for entry in common(mine, theirs))


@for_each(
    ("mine", "my_end", "theirs", "their_end", "expected"),
    [
        ([(1, 100), (2, 300), (3, 500)], 700, [(1, 100), (2, 300), (3, 450)], 900, 450),
        ([(1, 100), (2, 300)], 700, [(1, 100), (2, 300)], 600, 600),
        ([(1, 100), (2, 300), (3, 500)], 700, [(1, 200), (2, 500)], 700, None),
        ([(1, 100), (2, 300), (3, 500)], 700, [(1, 100), (2, 300), (3, 500), (4, 800)], 900, 700),
        ([], 0, [(1, 0)], 100, 0),
        ([(1, 0)], 100, [], 0, 0),
        ([(1, 0)], 100, [], 50, None),
        ([(5, 50)], 90, [(4, 10), (5, 50)], 80, 80),
    ],
)
def test_common_point(mine: Starts, my_end: int, theirs: Starts, their_end: int, expected: int | None) -> None:
    left, right = ([TermStart(*start) for start in starts] for starts in (mine, theirs))
    assert common_point(left, my_end, right, their_end) == expected
    assert common_point(right, their_end, left, my_end) == expected
