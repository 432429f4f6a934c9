"""Stored batches as fields of an answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from minimq_broker.store.message_store import StoredBatch
from minimq_common.large_fields import field_head
from minimq_proto.v1 import broker_pb2


def fill_batch(wire: broker_pb2.StoredBatch, batch: StoredBatch) -> broker_pb2.StoredBatch:
    """Set all of a batch but its bytes."""
    wire.base_offset, wire.store_timestamp_ms, wire.position = batch.base_offset, batch.stored_ms, batch.position
    wire.count, wire.due_ms = batch.count, batch.due_ms
    return wire


def batch_parts(number: int, batches: Iterable[StoredBatch]) -> Iterator[bytes]:
    """Yield what batches are on the wire as fields of that number, without a copy of their bytes."""
    for batch in batches:
        around = fill_batch(broker_pb2.StoredBatch(), batch).SerializeToString()
        head = around + field_head(broker_pb2.StoredBatch.BATCH_FIELD_NUMBER, len(batch.data))
        yield field_head(number, len(head) + len(batch.data))
        yield head
        yield batch.data
