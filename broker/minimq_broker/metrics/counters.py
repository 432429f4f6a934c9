"""Counters of a broker, for its metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from minimq_common.serving.histogram import SECONDS, Histogram


@dataclass(slots=True)
class Counters:
    """Counts since the start of the broker. Any thread may read; one thread at a time changes a field."""

    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    segments_deleted: int = 0
    segments_rewritten: int = 0
    segments_verified: int = 0
    bytes_deleted: int = 0
    bytes_deleted_early: int = 0
    #: The disk is nearly full, and deleting messages would not help.
    disk_filled_by_others: bool = False
    #: Rejected batches by error code.
    rejected: Counter[str] = field(default_factory=Counter)
    streams_rejected: Counter[str] = field(default_factory=Counter)
    #: Seconds from the arrival of a batch to its answer.
    append_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))
