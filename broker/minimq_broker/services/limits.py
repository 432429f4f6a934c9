"""Limits on what a broker accepts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what the broker accepts.

    Attributes:
        max_body_bytes: largest body of a message, in bytes.
        max_batch_bytes: largest batch, in bytes.
        max_pending_bytes: bytes of batches that may wait for the disk; more are not read from the network.
        busy_after_s: seconds that a batch may wait for room among these bytes.
        max_unsent_bytes: bytes that may have been made for clients that have not read them yet.
        max_incoming_bytes: bytes of requests that may have come in part, or wait to be taken in.
        slave_read_lag: bytes that a reader may be behind the end of the log before it is sent to a slave.
        max_topics: topics; no more are created.
        max_groups: consumer groups; no more are begun.
        max_sessions: consumers that have a session.
    """

    max_body_bytes: int
    max_batch_bytes: int
    max_pending_bytes: int
    busy_after_s: float = 0.5
    max_unsent_bytes: int = 96 << 20
    max_incoming_bytes: int = 80 << 20
    slave_read_lag: int = 1 << 32
    max_topics: int = 50_000
    max_groups: int = 10_000
    max_sessions: int = 10_000
