"""A transaction on its way to one broker, and the receipts that come of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minimq.sending.batcher import Part
from minimq.sending.placement import TransactionMessage
from minimq.sending.receipt import BatchReceipt, SendReceipt, SendStatus
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2


class EncodedPart(NamedTuple):
    """A batch of a transaction, encoded under its number."""

    part: Part
    data: bytes
    sequence: int
    begins_at: int | None = None


class PlacedTransaction(NamedTuple):
    """A transaction on its way to one broker."""

    broker_name: str
    topic: str
    parts: Sequence[EncodedPart]
    others: bool


def transaction_receipts(
    messages: Sequence[TransactionMessage],
    placed: PlacedTransaction,
    answers: Sequence[broker_pb2.AppendResult],
    producer_id: int,
) -> list[SendReceipt]:
    """Return a receipt for each message."""
    found: dict[int, SendReceipt] = {}
    for each, answer in zip(placed.parts, answers, strict=True):
        part = each.part
        queue = MessageQueue(part.queue.topic, part.queue.broker_name, answer.queue_id)
        status = SendStatus(answer.status)
        batch = BatchReceipt(
            queue,
            answer.base_offset,
            answer.store_timestamp_ms,
            len(part.indices),
            producer_id,
            each.sequence,
            status,
        )
        found |= {index: SendReceipt(batch, place) for place, index in enumerate(part.indices)}
    return [found[index] for index in range(len(messages))]
