"""Counters of a broker, for its metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from minimq_common.histogram import SECONDS, Histogram


@dataclass(slots=True)
class Counters:
    """Counts since the start: messages, and what retention has deleted.

    Attributes:
        bytes_in, bytes_out: those of batches.
        bytes_deleted_early: those that went because the disk was nearly full.
        disk_filled_by_others: the disk is nearly full, and deleting more would not help.
        segments_rewritten: files that rewritings have replaced.
        refused: batches that were not taken, by the code of the error.
        expired_by_age: transactions of which something expired because of its age.
        expired_for_room: transactions that expired because they were idle and there was little room.
        atomic_appends: transactions that were stored in one append.
        messages_searched: those that searches have looked at.
        pops_missed: messages taken one by one that were deleted before their group had settled them.
        halves_ended: transactions with half messages, by their outcome.
        half_checks: how often somebody was asked how one ends.
        replies: those that were forwarded, or not, by the outcome.
        delayed_in: delayed messages that were stored.
        delayed_published: those that were due and came into their queues.
        delayed_recalled: those that were recalled.
        delayed_lost: batches of them that could not be read when they were due.
        delayed_late_s: seconds from the time at which a delayed batch was due to its storage in its queue.
        compaction_rounds: rounds of compaction that were carried out.
        compacted_messages: messages that they have looked at in segments that were rewritten.
        compaction_removed: those that they have removed.
        append_s: seconds from the arrival of a batch to its answer.
        streams_refused: streams that were one too many, by the name of the call.
    """

    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    segments_deleted: int = 0
    segments_rewritten: int = 0
    segments_verified: int = 0
    segments_repaired: int = 0
    bytes_deleted: int = 0
    bytes_deleted_early: int = 0
    disk_filled_by_others: bool = False
    expired_by_age: int = 0
    expired_for_room: int = 0
    atomic_appends: int = 0
    pops_missed: int = 0
    delayed_in: int = 0
    delayed_published: int = 0
    delayed_recalled: int = 0
    delayed_lost: int = 0
    compaction_rounds: int = 0
    compacted_messages: int = 0
    compaction_removed: int = 0
    halves_ended: Counter[str] = field(default_factory=Counter)
    half_checks: int = 0
    messages_searched: int = 0
    replies: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    streams_refused: Counter[str] = field(default_factory=Counter)
    append_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    delayed_late_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))
