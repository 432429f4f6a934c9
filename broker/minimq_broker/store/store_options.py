"""Options of a store."""

from __future__ import annotations

from dataclasses import dataclass

from minimq_broker.core.held.delays import MAX_DELAY_MS
from minimq_broker.core.held.staging import StagingLimits
from minimq_broker.core.upkeep.disk import UNWATCHED, Watermarks
from minimq_broker.core.upkeep.retention import FOR_EVER, RetentionRules
from minimq_broker.store.data_dir import Owner


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The sizes and times of a store."""

    segment_bytes: int = 1 << 30
    #: Acknowledge after the sync, or before the commit.
    sync: bool = True
    checkpoint_interval_s: float = 5.0
    retention: RetentionRules = FOR_EVER
    #: Age at which a segment may be rewritten for the sake of its garbage.
    rewrite_after_s: float = 3600.0
    dead_letters: RetentionRules = FOR_EVER
    watermarks: Watermarks = UNWATCHED
    #: None: half of the disk, because staged batches are written once more when they are published.
    staging: StagingLimits | None = None
    max_delay_ms: int = MAX_DELAY_MS
    replication_timeout_s: float = 5.0
    owner: Owner | None = None
