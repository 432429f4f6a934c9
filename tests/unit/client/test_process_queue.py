"""From where a group would go on, and how much of a queue is in hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minimq.receiving.listening.in_flight import InFlightLimits, ProcessQueue


def test_nothing_in_hand_is_passed_over() -> None:
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


def test_part_of_a_range_may_be_finished() -> None:
    work = ProcessQueue(0)
    work.begin(0, 10, messages=10, size=100)
    work.begin(10, 20, messages=10, size=100)
    work.narrow(0, 4, messages=6, size=60)
    assert (work.commit_position, work.messages, work.size, work.span) == (4, 16, 160, 16)
    work.finish(10)
    assert (work.commit_position, work.messages, work.size, work.span) == (4, 6, 60, 16)
    work.finish(0)
    assert (work.commit_position, work.messages, work.size, work.span) == (20, 0, 0, 0)


def test_what_is_passed_over_is_finished_when_all_before_it_is() -> None:
    work = ProcessQueue(0)
    work.pass_over(5)
    assert work.commit_position == 5
    work.begin(5, 6)
    work.pass_over(9)
    work.pass_over(7)
    assert work.commit_position == 5
    work.finish(5)
    assert work.commit_position == 9


def test_each_limit_counts_alone() -> None:
    work = ProcessQueue(100)
    work.begin(100, 110, messages=3, size=50)
    assert not work.is_full(InFlightLimits(4, 51, 11))
    assert work.is_full(InFlightLimits(3, 51, 11))
    assert work.is_full(InFlightLimits(4, 50, 11))
    assert work.is_full(InFlightLimits(4, 51, 10))


class Model:
    """The same by sets of offsets: plain and slow."""

    def __init__(self) -> None:
        self.end = 0
        self.open: dict[int, set[int]] = {}

    @property
    def offsets(self) -> set[int]:
        return {offset for offsets in self.open.values() for offset in offsets}

    @property
    def commit_position(self) -> int:
        return min(self.offsets, default=self.end)


#: Begin a range of so many, narrow one to so many, split one into its last ones, finish one, or pass so many over.
STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "begin", "narrow", "split", "finish", "pass over"]), st.integers(1, 6)),
    max_size=60,
)


@given(STEPS, st.data(), st.builds(InFlightLimits, st.integers(1, 20), st.integers(1, 200), st.integers(1, 30)))
def test_it_is_the_same_as_a_plain_model(
    steps: list[tuple[str, int]], data: st.DataObject, limits: InFlightLimits
) -> None:
    work, model = ProcessQueue(0), Model()
    for what, number in steps:
        first = data.draw(st.sampled_from([-1, *model.open]))
        if what == "begin":
            work.begin(model.end, model.end + number, number, 10 * number)
            model.open[model.end] = set(range(model.end, model.end + number))
            model.end += number
        elif what == "pass over":
            work.pass_over(model.end + number)
            model.end += number
        elif what == "finish":
            work.finish(first)
            model.open.pop(first, None)
        elif first in model.open and what == "split":
            left = sorted(model.open.pop(first))[-number:]
            work.split(first, [(offset, 10) for offset in left])
            model.open |= {offset: {offset} for offset in left}
        elif first in model.open:
            left = sorted(data.draw(st.permutations(sorted(model.open[first])))[:number])
            work.narrow(first, left[0], len(left), 10 * len(left))
            model.open[first] = set(left)
        in_flight = len(model.offsets)
        assert work.commit_position == model.commit_position
        assert work.idle == (not model.open)
        assert (work.messages, work.size) == (in_flight, 10 * in_flight)
        assert work.span == model.end - model.commit_position
        assert work.is_full(limits) == (
            in_flight >= limits.messages or 10 * in_flight >= limits.size or work.span >= limits.span
        )
