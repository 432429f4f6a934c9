"""Compacted batches for tests."""

from __future__ import annotations

from collections.abc import Sequence

from minimq_broker.features.compaction.compacted_batch import BatchPart, compacted
from minimq_common.batch.records import RecordBatch
from support.batches import NOW_MS

BASE = 1000
STORED_MS = NOW_MS + 60_000
COMPACTED_MS = NOW_MS + 120_000


def parts_of(batches: Sequence[bytes], remains: Sequence[bool], base_offset: int = BASE) -> list[BatchPart]:
    """Return neighboring batches as parts, given for each of all of their records whether it remains."""
    parts, at = [], 0
    for number, data in enumerate(batches):
        records = RecordBatch(data)
        here = remains[at : at + len(records)]
        parts.append(BatchPart(base_offset + at, STORED_MS + number, COMPACTED_MS, records, here))
        at += len(records)
    return parts


def compacted_of(batches: Sequence[bytes], remains: Sequence[bool], base_offset: int = BASE) -> bytes:
    """Return neighboring batches as one that is compacted."""
    return compacted(parts_of(batches, remains, base_offset))
