"""The record of which dead letters are settled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq.dead_letters.settled_letters import MAX_MARKED, Mark, SettledLetters, mark_of
from minimq_common.errors import InvalidArgument

OFFSETS = st.sets(st.integers(0, 30), min_size=1, max_size=12)


@given(st.lists(st.tuples(OFFSETS, st.integers(0, 3)), max_size=12))
def test_the_marks_of_a_queue_add_up(marks: list[tuple[set[int], int]]) -> None:
    settled = SettledLetters()
    model: dict[int, int] = {}
    for offsets, died_ms in marks:
        mark = Mark.decode(mark_of(3, sorted(offsets), died_ms, "resent").encode())
        settled.add(mark.runs, mark.died_ms)
        model.update(dict.fromkeys(offsets, died_ms))
    for offset in range(32):
        for died_ms in range(4):
            assert settled.has(offset, died_ms) == (died_ms <= model.get(offset, -1))


def test_offsets_that_follow_each_other_are_one_run() -> None:
    mark = mark_of(0, [3, 4, 5, 9, 11, 12], 7, "dropped")
    assert mark.runs == [(3, 3), (9, 1), (11, 2)]
    assert Mark.decode(mark.encode()) == mark


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"queue_id":0,"runs":[[0,0]],"died_ms":1,"outcome":"resent"}',
        b'{"queue_id":0,"runs":[[-1,1]],"died_ms":1,"outcome":"resent"}',
        b'{"queue_id":0,"runs":[[0,9999999999999999999]],"died_ms":1,"outcome":"resent"}',
        b'{"queue_id":0,"runs":[[0,1]],"died_ms":1,"outcome":"eaten"}',
        b'{"queue_id":0,"runs":[' + b",".join([b"[0,1]"] * (MAX_MARKED + 1)) + b'],"died_ms":1,"outcome":"resent"}',
    ],
)
def test_what_is_no_mark_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgument, match="no mark of settled dead letters"):
        Mark.decode(body)
