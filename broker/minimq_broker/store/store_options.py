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
    """Options of a store."""

    segment_bytes: int = 1 << 30
    #: True: acknowledge after the sync; False: before the commit.
    sync: bool = True
    checkpoint_interval_s: float = 5.0
    retention: RetentionRules = FOR_EVER
    #: Minimum age of a segment that is rewritten only to remove garbage.
    rewrite_after_s: float = 3600.0
    dead_letters: RetentionRules = FOR_EVER
    watermarks: Watermarks = UNWATCHED
    #: None: half of the disk, because publishing writes staged batches a second time.
    staging: StagingLimits | None = None
    max_delay_ms: int = MAX_DELAY_MS
    replication_timeout_s: float = 5.0
    owner: Owner | None = None
