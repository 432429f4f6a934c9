"""From bounds and wishes to partitions."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minimq.consuming.stored_offsets import StoredOffsets
from minimq_common.model import MessageQueue, TopicId
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.planning import EARLIEST, LATEST, OffsetRange, Offsets, group_ranges, plan_ranges, split_ranges

A0, A1, B0 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)
BOUNDS = {A0: StoredOffsets(10, 20), A1: StoredOffsets(0, 0), B0: StoredOffsets(0, 5)}


def plan(starting: Offsets = EARLIEST, ending: Offsets = LATEST, *, strict: bool = True) -> list[OffsetRange]:
    return plan_ranges(BOUNDS, starting, ending, fail_on_data_loss=strict)


def planned(queue: MessageQueue, start: int, end: int, term: int = 0) -> OffsetRange:
    return OffsetRange(queue, start, end, term, TopicId(0, 0))


def rejection(starting: Offsets = EARLIEST, ending: Offsets = LATEST, *, strict: bool = True) -> str:
    with pytest.raises(MinimqSparkError) as caught:
        plan(starting, ending, strict=strict)
    return str(caught.value)


# ---- Ranges -------------------------------------------------------------------------------------


def test_everything_is_read_by_default_and_empty_queues_are_left_out() -> None:
    assert plan() == [planned(A0, 10, 20), planned(B0, 0, 5)]


def test_a_queue_without_an_offset_is_named() -> None:
    assert "startingOffsets has no offset for queue t/a/1, queue t/b/0: name every queue" in rejection({A0: 10})


def test_a_queue_that_does_not_exist_is_named() -> None:
    wanted = {A0: 10, A1: 0, B0: 0, MessageQueue("t", "c", 7): 3}
    assert "startingOffsets names queue t/c/7, which does not exist: there are queue t/a/0" in rejection(wanted)


def test_without_fail_on_data_loss_a_queue_that_does_not_exist_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    wanted = {A0: 15, A1: 0, B0: 5, MessageQueue("t", "c", 7): 3}
    assert plan(wanted, strict=False) == [planned(A0, 15, 20)]
    assert plan(EARLIEST, wanted, strict=False) == [planned(A0, 10, 15), planned(B0, 0, 5)]
    assert "startingOffsets names queue t/c/7, which does not exist" in caplog.text
    assert "endingOffsets names queue t/c/7, which does not exist" in caplog.text
    assert "startingOffsets has no offset for queue t/b/0: name every queue" in rejection({A0: 10, A1: 0}, strict=False)


@pytest.mark.parametrize("offset", [9, 21])
def test_an_offset_that_is_not_stored_is_rejected_with_those_that_are(offset: int) -> None:
    text = rejection({A0: offset, A1: 0, B0: 0})
    assert text.startswith(f"startingOffsets has offset {offset} for queue t/a/0, which has 10 to 20:")
    assert text.count("\n") == 0


def test_what_is_there_is_read_when_loss_is_no_failure() -> None:
    wide = plan({A0: 0, A1: 0, B0: 3}, {A0: 100, A1: 7, B0: 100}, strict=False)
    assert wide == [planned(A0, 10, 20), planned(B0, 3, 5)]
    assert plan({A0: 0, A1: 0, B0: 0}, {A0: 5, A1: 0, B0: 5}, strict=False) == [planned(B0, 0, 5)]


def test_a_part_knows_in_which_term_its_queue_was_looked_up() -> None:
    bounds = {A0: StoredOffsets(0, 20, term=3), B0: StoredOffsets(0, 5, term=7)}
    ranges = plan_ranges(bounds, EARLIEST, LATEST, fail_on_data_loss=True)
    assert ranges == [planned(A0, 0, 20, 3), planned(B0, 0, 5, 7)]
    parts = split_ranges(ranges, max_records=10)
    assert {(part.queue, part.term) for part in parts} == {(A0, 3), (B0, 7)}


# ---- Partitions ---------------------------------------------------------------------------------


def test_a_range_is_one_partition_unless_more_are_asked_for() -> None:
    assert split_ranges([OffsetRange(A0, 0, 1000), OffsetRange(B0, 5, 6)]) == [
        OffsetRange(A0, 0, 1000),
        OffsetRange(B0, 5, 6),
    ]


ranges_of_queues = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 10**12), st.integers(1, 500)), unique_by=lambda item: item[0]
).map(lambda items: [OffsetRange(MessageQueue("t", "ab"[n % 2], n), at, at + size) for n, at, size in items])


@settings(deadline=None)
@given(
    ranges=ranges_of_queues, min_partitions=st.none() | st.integers(1, 300), max_records=st.none() | st.integers(1, 600)
)
def test_partitions_cover_every_offset_once_within_the_limits(
    ranges: list[OffsetRange], min_partitions: int | None, max_records: int | None
) -> None:
    parts = split_ranges(ranges, min_partitions, max_records)

    by_queue = defaultdict(list)
    for part in parts:
        assert part.start < part.end
        assert max_records is None or len(part) <= max_records
        by_queue[part.queue].append(part)
    for whole in ranges:
        cuts = by_queue.pop(whole.queue)
        assert [cut.start for cut in cuts] + [whole.end] == [whole.start] + [cut.end for cut in cuts]
        assert max(map(len, cuts)) - min(map(len, cuts)) <= 1
    assert not by_queue
    if ranges:
        assert len(parts) >= min(min_partitions or 1, sum(map(len, ranges)))


# ---- Small ranges share a partition -------------------------------------------------------------


def test_idle_cores_get_work_if_there_is_enough() -> None:
    ranges = [OffsetRange(MessageQueue("t", "a", queue), 0, 5_000) for queue in range(8)]

    def sizes(cores: int, *more: OffsetRange) -> list[int]:
        return [sum(map(len, group)) for group in group_ranges([*ranges, *more], 100_000, cores=cores)]

    assert sizes(2) == [20_000] * 2
    assert sizes(16) == [10_000] * 4
    assert sizes(2, OffsetRange(B0, 0, 200_000)) == [40_000, 200_000]


@settings(deadline=None)
@given(
    ranges=ranges_of_queues,
    min_records=st.integers(1, 1000),
    min_partitions=st.none() | st.integers(1, 300),
    max_records=st.none() | st.integers(1, 700),
)
def test_each_range_is_in_one_partition_within_the_limits(
    ranges: list[OffsetRange], min_records: int, min_partitions: int | None, max_records: int | None
) -> None:
    parts = split_ranges(ranges, min_partitions, max_records)
    groups = group_ranges(parts, min_records, min_partitions, max_records)

    assert sorted(part for group in groups for part in group) == sorted(parts)
    assert len(groups) >= min(min_partitions or 0, len(parts))
    place = {part: number for number, part in enumerate(parts)}
    assert groups == sorted(groups, key=lambda group: place[group[0]])
    for group in groups:
        assert list(group) == sorted(group, key=place.__getitem__)
        assert len(group) == 1 or max_records is None or sum(map(len, group)) <= max_records
        assert len(group) == 1 or all(len(part) < min_records for part in group)
        assert len(group) == 1 or sum(map(len, group)) < 3 * min_records
