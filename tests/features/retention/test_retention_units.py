"""The choice of segments to delete, and the measures against a full disk."""

from __future__ import annotations

import dataclasses
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq_broker.assembly import BrokerOptions
from minimq_broker.features.retention.retention import (
    LiveData,
    Reason,
    RetentionRules,
    SegmentInfo,
    early_bytes,
    expired,
    is_outdated,
)
from minimq_broker.log.disk_levels import DiskLevel, DiskUse, Watermarks
from minimq_common.errors import InvalidArgument
from support.cases import for_each

NOW_MS = 1_000_000
EVERYTHING = 1 << 60


def row_of(*newest_ms: int | None, size: int = 100) -> list[SegmentInfo]:
    """Return segments of one size, whose last batches were stored at these times."""
    return [SegmentInfo(size * n, size * (n + 1), size, newest) for n, newest in enumerate(newest_ms)]


def starts(segments: list[SegmentInfo], rules: RetentionRules, free_to: int = EVERYTHING, excess: int = 0) -> list[int]:
    gone = expired(segments, NOW_MS, rules, free_to=free_to, excess_bytes=excess)
    return [item.segment.start for item in gone]


# ---- one rule at a time ---------------------------------------------------------------------------


@pytest.mark.parametrize("pressure", ["size", "disk"])
def test_what_a_rewriting_has_left_keeps_no_younger_segments_that_the_disk_needs(pressure: str) -> None:
    rest = LiveData(aged_bytes=10, lasting_bytes=10, is_rest=True)
    segments = row_of(NOW_MS, NOW_MS, NOW_MS, NOW_MS)
    segments[0] = dataclasses.replace(segments[0], rest=rest)
    rules = RetentionRules(max_age_ms=1000, max_bytes=250 if pressure == "size" else 0)
    assert starts(segments, rules, excess=150 if pressure == "disk" else 0) == [100, 200]


def test_an_old_segment_behind_a_young_one_waits() -> None:
    """A clock that was set back must not tear a hole into the log."""
    assert starts(row_of(NOW_MS, 0, 0, NOW_MS), RetentionRules(max_age_ms=1000)) == []


@for_each(
    ("excess", "grown", "early"),
    [
        (0, 500, 0),
        (1, 500, 1),
        (400, 500, 400),
        (401, 500, 0),  # all old segments together do not make enough room
        (1, 49, 0),  # somebody else has filled the disk since
        (300, 50, 100),
    ],
)
def test_a_disk_that_others_fill_gets_nothing_back(excess: int, grown: int, early: int) -> None:
    assert early_bytes(excess, row_of(*[NOW_MS] * 5), grown) == early


def test_size_counts_the_segment_that_is_written_to() -> None:
    segments = row_of(*[NOW_MS] * 5)
    assert starts(segments, RetentionRules(max_bytes=500)) == []
    assert starts(segments, RetentionRules(max_bytes=499)) == [0]
    assert starts(segments, RetentionRules(max_bytes=200)) == [0, 100, 200]
    assert starts(segments, RetentionRules(max_bytes=1)) == [0, 100, 200, 300]


def test_the_active_segment_is_outdated_when_all_its_batches_are() -> None:
    rules = RetentionRules(max_age_ms=1000)
    assert is_outdated(SegmentInfo(0, 9, 9, NOW_MS - 1000), NOW_MS, rules)
    assert not is_outdated(SegmentInfo(0, 9, 9, NOW_MS - 999), NOW_MS, rules)
    assert not is_outdated(SegmentInfo(0, 9, 9, None), NOW_MS, rules)


# ---- all rules together ---------------------------------------------------------------------------


@st.composite
def logs(draw: st.DrawFn) -> list[SegmentInfo]:
    sizes = draw(st.lists(st.integers(1, 50), min_size=1, max_size=8))
    ends = list(accumulate(sizes, initial=draw(st.integers(0, 100))))
    times = st.none() | st.integers(NOW_MS - 50, NOW_MS)
    return [SegmentInfo(start, end, end - start, draw(times)) for start, end in pairwise(ends)]


@given(logs(), st.integers(0, 60), st.integers(0, 300), st.integers(0, 400), st.integers(0, 300))
def test_what_goes_is_a_beginning_that_nobody_needs_and_some_rule_wants(
    segments: list[SegmentInfo], max_age_ms: int, max_bytes: int, free_to: int, excess: int
) -> None:
    rules = RetentionRules(max_age_ms, max_bytes)
    gone = expired(segments, NOW_MS, rules, free_to=free_to, excess_bytes=excess)
    assert [item.segment for item in gone] == segments[: len(gone)]
    assert len(gone) < len(segments)
    assert all(item.segment.end <= free_to for item in gone)
    for index, item in enumerate(gone):
        newest, left = item.segment.newest_ms, sum(segment.size_bytes for segment in segments[index:])
        match item.reason:
            case Reason.AGE:
                assert max_age_ms
                assert newest is None or newest <= NOW_MS - max_age_ms
            case Reason.SIZE:
                assert left > max_bytes > 0
            case Reason.DISK:
                assert sum(segment.size_bytes for segment in segments[:index]) < excess
    first_left = segments[len(gone)]
    if len(gone) < len(segments) - 1 and first_left.end <= free_to:  # nothing was spared without a reason
        assert not max_bytes or sum(segment.size_bytes for segment in segments[len(gone) :]) <= max_bytes
        assert sum(item.segment.size_bytes for item in gone) >= excess
        assert not max_age_ms or (first_left.newest_ms is not None and first_left.newest_ms > NOW_MS - max_age_ms)


# ---- the disk -------------------------------------------------------------------------------------


def disk(percent: float) -> DiskUse:
    used = round(10_000 * percent)
    return DiskUse(used, 1_000_000 - used)


@for_each(
    ("percent", "level"),
    [
        (74.9, DiskLevel.NORMAL),
        (75.0, DiskLevel.WARN),
        (84.9, DiskLevel.WARN),
        (85.0, DiskLevel.DELETE_EARLY),
        (90.0, DiskLevel.REJECT),
        (100.0, DiskLevel.REJECT),
    ],
)
def test_levels(percent: float, level: DiskLevel) -> None:
    assert Watermarks().level(disk(percent)) is level


def test_a_level_that_was_reached_is_left_a_little_later() -> None:
    marks = Watermarks()
    level = DiskLevel.NORMAL
    seen = []
    for percent in (89.9, 90.0, 89.0, 88.0, 87.9, 89.9, 83.0, 82.9, 74.0, 72.9):
        level = marks.level(disk(percent), level)
        seen.append(level.name)
    assert seen == [
        *("DELETE_EARLY", "REJECT", "REJECT", "REJECT", "DELETE_EARLY", "DELETE_EARLY"),
        *("DELETE_EARLY", "WARN", "WARN", "NORMAL"),
    ]


@given(st.integers(0, 1_000_000), st.floats(0.05, 0.999), st.sampled_from(list(DiskLevel)))
def test_without_its_excess_a_disk_is_below_the_mark(used: int, mark: float, before: DiskLevel) -> None:
    marks = Watermarks(mark, 1.0)
    use = DiskUse(used, 1_000_000 - used)
    level = marks.level(use, before)
    excess = marks.excess_bytes(use, level)
    assert (excess > 0) == (level >= DiskLevel.DELETE_EARLY)
    after = DiskUse(use.used_bytes - excess, use.free_bytes + excess)
    assert marks.level(after, level) < DiskLevel.DELETE_EARLY
    if excess > 1:
        nearly = DiskUse(after.used_bytes + 2, after.free_bytes - 2)
        assert marks.level(nearly, level) >= DiskLevel.DELETE_EARLY


def test_marks_come_in_their_order_unless_they_are_off() -> None:
    BrokerOptions(disk_delete_early=0.85, disk_reject=1.0)
    BrokerOptions(disk_delete_early=1.0, disk_reject=0.8)
    with pytest.raises(InvalidArgument, match=r"--disk-reject 0.9 is below --disk-delete-early 0.95"):
        BrokerOptions(disk_delete_early=0.95)
