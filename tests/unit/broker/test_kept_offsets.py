"""Offsets that are kept while there is no master."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimq_broker.core.facts import CommittedOffset
from minimq_broker.core.state import QueueKey
from minimq_broker.replication.kept_offsets import KeptOffsets

QUEUE, OTHER = QueueKey(1, 0), QueueKey(1, 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept.mdb"


def test_offsets_are_there_after_a_start(path: Path) -> None:
    kept = KeptOffsets(path)
    kept.put("g", [CommittedOffset(*QUEUE, 5), CommittedOffset(*OTHER, 7)])
    kept.put("g", [CommittedOffset(*QUEUE, 6)])
    kept.put("h", [CommittedOffset(*QUEUE, 1)])
    kept.close()
    again = KeptOffsets(path)

    assert (again.get("g", QUEUE), again.get("g", OTHER), again.get("h", QUEUE)) == (6, 7, 1)
    assert again.get("h", OTHER) is None
    again.close()


def test_what_is_recorded_is_forgotten_and_what_was_committed_since_is_not(path: Path) -> None:
    kept = KeptOffsets(path)
    kept.put("g", [CommittedOffset(*QUEUE, 5), CommittedOffset(*OTHER, 7)])
    number = kept.rows()[-1].number
    kept.put("g", [CommittedOffset(*OTHER, 8)])
    kept.recorded(number)
    assert [(row.queue, row.offset) for row in kept.rows()] == [(OTHER, 8)]
    kept.close()
    again = KeptOffsets(path)
    assert [(row.queue, row.offset) for row in again.rows()] == [(OTHER, 8)]
    again.put("g", [CommittedOffset(*QUEUE, 9)])
    assert [row.offset for row in again.rows()] == [8, 9]  # numbers go on
    again.close()


def test_times_are_counted_over_starts(path: Path) -> None:
    kept = KeptOffsets(path)
    assert [kept.begin(), kept.begin()] == [1, 2]
    kept.close()
    again = KeptOffsets(path)
    assert again.begin() == 3
    assert again.rows() == []
    again.close()
