"""Encodes messages and records as numbered batches."""

from __future__ import annotations

import random

from minimq.sending.pending_batch import BatchNumber, PendingBatch, Records
from minimq.sending.producer_options import ProducerOptions
from minimq_common.batch_builder import BatchBuilder
from minimq_common.single_batch import encode_single


class BatchEncoder:
    """Encodes the batches of one producer. Thread-safe."""

    def __init__(self, options: ProducerOptions) -> None:
        self._max_body_bytes = options.max_body_bytes
        self._compression = options.batch_compression
        self.producer_id = random.getrandbits(64) or 1  # 0 stands for a producer that does not number its batches

    def encode_messages(self, batch: PendingBatch) -> bytes:
        """Return the encoded messages of a batch. Raises any error that a modified message can cause."""
        assert batch.number is not None
        if len(batch.messages) == 1 and self._compression is None and batch.message_group is None:
            item = batch.messages[0]
            single = encode_single(item.message, self._max_body_bytes, item.born_ms, self.producer_id, *batch.number)
            if single is not None:
                return single
        builder = BatchBuilder(self._max_body_bytes, self._compression, batch.message_group)
        builder.add([item.message for item in batch.messages])
        return self.encode_records(builder, [item.born_ms for item in batch.messages], batch.number)

    def encode_records(self, records: Records, born_ms: int | list[int], number: BatchNumber) -> bytes:
        """Return encoded records. Raises `InvalidArgument`."""
        return records.build(born_ms, self.producer_id, *number)
