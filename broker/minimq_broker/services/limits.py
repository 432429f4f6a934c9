"""Limits on what a broker accepts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what the broker accepts."""

    max_body_bytes: int
    max_batch_bytes: int
    #: Bytes of batches that may wait for the disk; more are not read from the network.
    max_pending_bytes: int
    #: Seconds that a batch may wait for room among these bytes.
    busy_after_s: float = 0.5
    #: Bytes that may have been made for clients that have not read them yet.
    max_unsent_bytes: int = 96 << 20
    #: Bytes that a reader may be behind the end of the log before it is sent to a slave.
    slave_read_lag: int = 1 << 32
    max_topics: int = 50_000
    max_groups: int = 10_000
    max_sessions: int = 10_000
