"""Lost batches of transactions: they were staged and decided on, and cannot be read any more."""

from __future__ import annotations

import logging
from typing import NamedTuple

from minimq_broker.core.staged_batches import StagedBatch, TransactionId

log = logging.getLogger(__name__)


class LostBatch(NamedTuple):
    """One of them, and why."""

    transaction: TransactionId
    topic: str
    batch: StagedBatch
    reason: str


def tell_lost(lost: list[LostBatch]) -> None:
    """Log the part of a transaction that is not published: one line for each queue."""
    queues: dict[tuple[str, int], list[LostBatch]] = {}
    for each in lost:
        queues.setdefault((each.topic, each.batch.queue_id), []).append(each)
    for (topic, queue_id), batches in queues.items():
        first = batches[0]
        log.error(
            "store: messages of a transaction are lost, the others of it are published transaction=%s number=%d "
            "topic=%s queue=%d batches=%d bytes=%d position=%d error=%s",
            *first.transaction,
            topic,
            queue_id,
            len(batches),
            sum(each.batch.size for each in batches),
            first.batch.position,
            first.reason,
        )
