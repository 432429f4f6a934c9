"""The options of the engine, of its store and of services, from those of the command."""

from __future__ import annotations

import math

from minimq_broker.core.held.staging import StagingLimits
from minimq_broker.core.upkeep.disk import Watermarks
from minimq_broker.core.upkeep.retention import RetentionRules
from minimq_broker.options import BrokerOptions
from minimq_broker.services.held.halves import HalfOptions
from minimq_broker.services.limits import Limits
from minimq_broker.services.upkeep.compactor import CompactorOptions
from minimq_broker.store.data_dir import Owner
from minimq_broker.store.store_options import StoreOptions


def store_options(options: BrokerOptions) -> StoreOptions:
    """Return the options of the store."""
    return StoreOptions(
        segment_bytes=options.segment_bytes,
        sync=options.flush == "sync",
        checkpoint_interval_s=options.checkpoint_interval_s,
        retention=RetentionRules(max_age_ms=math.ceil(options.retention_s * 1000), max_bytes=options.retention_bytes),
        rewrite_after_s=options.rewrite_after_s,
        dead_letters=RetentionRules(
            max_age_ms=math.ceil(options.dead_letter_retention_s * 1000), max_bytes=options.dead_letter_bytes
        ),
        watermarks=Watermarks(
            warn=options.disk_warn, delete_early=options.disk_delete_early, refuse=options.disk_refuse
        ),
        staging=StagingLimits(size=options.max_staged_bytes) if options.max_staged_bytes else None,
        max_delay_ms=math.ceil(options.max_delay_s * 1000),
        replication_timeout_s=options.replication_timeout_s,
        owner=Owner(cluster=options.cluster, name=options.name, id=options.broker_id),
    )


def half_options(options: BrokerOptions) -> HalfOptions:
    """Return the options of half messages."""
    return HalfOptions(
        check_after_s=options.half_check_after_s,
        check_interval_s=options.half_check_interval_s,
        checks=options.half_checks,
        expiry_s=options.half_expiry_s,
    )


def limits(options: BrokerOptions) -> Limits:
    """Return the limits of what clients may take of the broker's memory and disk."""
    return Limits(
        max_body_bytes=options.max_body_bytes,
        max_batch_bytes=options.max_batch_bytes,
        max_pending_bytes=options.max_pending_bytes,
        busy_after_s=options.busy_after_s,
        max_unsent_bytes=options.max_unsent_bytes,
        slave_read_lag=options.slave_read_lag,
        max_topics=options.max_topics,
        max_groups=options.max_groups,
        max_sessions=options.max_sessions,
    )


def compactor_options(options: BrokerOptions) -> CompactorOptions:
    """Return the options of the compactor."""
    return CompactorOptions(options.compaction_check_s, options.compaction_memory_bytes, options.compaction_share)
