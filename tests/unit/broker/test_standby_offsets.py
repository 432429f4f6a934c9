"""Offsets that are kept while there is no master."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from minimq_broker.core.facts import CommittedOffset
from minimq_broker.core.state import QueueKey
from minimq_broker.core.term_history import LogPlace
from minimq_broker.store.standby_offsets import Kept, StandbyOffsets
from minimq_common.errors import StoreFull

QUEUE, OTHER = QueueKey(1, 0), QueueKey(1, 1)


class Opened:
    """The file, which can be opened anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept = StandbyOffsets(path)

    def reopen(self) -> None:
        self.kept.close()
        self.kept = StandbyOffsets(self.path)

    def put(self, group: str, queue: QueueKey, offset: int, *, forced: bool = False) -> None:
        self.kept.put(group, [CommittedOffset(*queue, offset)], forced=forced)

    def offset(self, group: str, queue: QueueKey) -> int | None:
        kept = self.kept.get(group, queue)
        return kept.offset if kept is not None else None

    def rows(self) -> list[tuple[QueueKey, int]]:
        return [(row.queue, row.offset) for row in self.kept.rows()]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    opened = Opened(tmp_path / "kept.mdb")
    yield opened
    opened.kept.close()


def test_offsets_are_there_after_a_start(opened: Opened) -> None:
    opened.kept.put("g", [CommittedOffset(*QUEUE, 5), CommittedOffset(*OTHER, 7)])
    opened.put("g", QUEUE, 6)
    opened.put("h", QUEUE, 1, forced=True)
    opened.reopen()

    assert opened.kept.get("g", QUEUE) == Kept("g", QUEUE, 6, 3)
    assert opened.kept.get("g", OTHER) == Kept("g", OTHER, 7, 2)
    assert opened.kept.get("h", QUEUE) == Kept("h", QUEUE, 1, 4, forced=True)
    assert opened.kept.get("h", OTHER) is None


def test_offsets_go_back_only_when_they_are_forced(opened: Opened) -> None:
    opened.put("g", QUEUE, 100)
    opened.put("g", QUEUE, 40)
    assert opened.offset("g", QUEUE) == 100

    opened.put("g", QUEUE, 40, forced=True)
    opened.put("g", QUEUE, 50)
    opened.reopen()

    assert opened.kept.get("g", QUEUE) == Kept("g", QUEUE, 50, 3, forced=True)  # it counts from the forced one on


def test_of_one_queue_twice_in_one_commit_the_larger_offset_counts(opened: Opened) -> None:
    opened.kept.put("g", [CommittedOffset(*QUEUE, 7), CommittedOffset(*QUEUE, 5)])
    opened.reopen()
    assert opened.offset("g", QUEUE) == 7


def test_what_is_recorded_is_forgotten_and_what_was_committed_since_is_not(opened: Opened) -> None:
    opened.kept.put("g", [CommittedOffset(*QUEUE, 5), CommittedOffset(*OTHER, 7)])
    number = opened.kept.rows()[-1].number
    opened.put("g", QUEUE, 8)
    opened.kept.recorded(number)
    assert opened.rows() == [(QUEUE, 8)]
    opened.reopen()
    assert opened.rows() == [(QUEUE, 8)]
    opened.put("g", OTHER, 9)
    assert opened.rows() == [(QUEUE, 8), (OTHER, 9)]  # numbers go on
    [later] = opened.kept.rows(after=opened.kept.rows()[0].number)
    assert later.offset == 9
    assert opened.kept.rows(after=later.number) == []


def test_what_is_of_other_topics_is_forgotten(opened: Opened) -> None:
    opened.put("g", QUEUE, 5)
    opened.put("g", QueueKey(2, 0), 6)
    opened.kept.retain_topics([2])
    opened.reopen()
    assert opened.rows() == [(QueueKey(2, 0), 6)]


def test_nobody_who_looks_waits_for_the_disk(opened: Opened) -> None:
    opened.put("g", QUEUE, 5)
    assert opened.kept._writing.acquire(timeout=20)  # as if somebody were syncing
    try:
        seen: list[list[Kept]] = []
        looking = threading.Thread(target=lambda: seen.append(opened.kept.rows()), daemon=True)
        looking.start()
        looking.join(20)
        assert [len(rows) for rows in seen] == [1]
    finally:
        opened.kept._writing.release()


def test_a_full_disk_is_an_error_that_says_so_and_nothing_is_kept(opened: Opened) -> None:
    opened.put("g", QUEUE, 5)
    opened.kept._env.set_mapsize(opened.kept._env.info()["last_pgno"] * 4096)
    with pytest.raises(StoreFull, match="free space"):
        opened.kept.put("h" * 100, [CommittedOffset(1, number, 1) for number in range(1000)])
    assert opened.rows() == [(QUEUE, 5)]


def test_times_are_counted_over_starts(opened: Opened) -> None:
    assert [opened.kept.begin(), opened.kept.begin()] == [1, 2]
    opened.reopen()
    assert opened.kept.begin() == 3
    assert opened.kept.rows() == []


def test_where_the_log_was_is_kept_along(opened: Opened) -> None:
    opened.kept.put("g", [CommittedOffset(*QUEUE, 5)], LogPlace(3, 700))
    opened.reopen()
    assert opened.kept.get("g", QUEUE) == Kept("g", QUEUE, 5, 1, place=LogPlace(3, 700))
