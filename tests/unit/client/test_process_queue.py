"""From where a group would go on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minimq.receiving.process_queue import ProcessQueue


def test_nothing_in_work_is_passed_over() -> None:
    work = ProcessQueue(10)
    assert (work.idle, work.commit_position) == (True, 10)
    for first in (10, 20, 30):
        work.begin(first, first + 10)
    assert (work.idle, work.commit_position) == (False, 10)
    work.finish(20)
    assert work.commit_position == 10
    work.finish(10)
    assert work.commit_position == 30
    work.finish(30)
    assert (work.idle, work.commit_position) == (True, 40)
    work.finish(30)
    assert work.commit_position == 40


@given(st.lists(st.integers(1, 5), max_size=20), st.data())
def test_the_position_is_that_of_a_plain_model(sizes: list[int], data: st.DataObject) -> None:
    work = ProcessQueue(0)
    open_offsets: set[int] = set()
    ranges: dict[int, int] = {}
    end = 0
    for size in sizes:
        work.begin(end, end + size)
        ranges[end] = end + size
        open_offsets |= set(range(end, end + size))
        end += size
        first = data.draw(st.sampled_from([-1, *ranges]))
        if first in ranges:
            work.finish(first)
            open_offsets -= set(range(first, ranges.pop(first)))
        assert work.commit_position == min(open_offsets, default=end)
        assert work.idle == (not open_offsets)
