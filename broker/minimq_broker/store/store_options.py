"""Options of a store, and its observer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minimq_broker.core.held.delays import MAX_DELAY_MS
from minimq_broker.core.held.staging import StagingLimits
from minimq_broker.core.upkeep.disk import UNWATCHED, Watermarks
from minimq_broker.core.upkeep.retention import FOR_EVER, RetentionRules
from minimq_broker.store.data_dir import Owner


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of a store: how it keeps its data.

    Attributes:
        segment_bytes: size in bytes at which a segment of the CommitLog is sealed.
        sync: acknowledge after the sync (True), or before the commit (False).
        checkpoint_interval_s: seconds between two saves of the state; recovery applies later entries.
        retention: how long segments are kept.
        rewrite_after_s: seconds after which a segment may be rewritten for the sake of its garbage.
        dead_letters: how long those of a group are kept.
        watermarks: from which fullness of the disk on something is done.
        staging: how much may be staged for transactions; by default half of the disk, because staged batches are
            written once more when they are published.
        max_delay_ms: the longest delay of a batch.
        replication_timeout_s: seconds to wait for other replicas before the caller gets an error.
        owner: the owner of the data; None if it is not needed.
    """

    segment_bytes: int = 1 << 30
    sync: bool = True
    checkpoint_interval_s: float = 5.0
    retention: RetentionRules = FOR_EVER
    rewrite_after_s: float = 3600.0
    dead_letters: RetentionRules = FOR_EVER
    watermarks: Watermarks = UNWATCHED
    staging: StagingLimits | None = None
    max_delay_ms: int = MAX_DELAY_MS
    replication_timeout_s: float = 5.0
    owner: Owner | None = None


@dataclass(frozen=True, slots=True)
class StoreObserver:
    """Functions that a store calls, on any thread; they must neither block nor fail."""

    #: The log has grown, whether that is confirmed or not; None: there is no other replica.
    grown: Callable[[], None] | None
    damage_found: Callable[[int, str], None]
    disk_filled: Callable[[], None]
