"""Encodes messages and records as numbered batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from minimq.sending.pending_batch import BatchNumber, Records
from minimq.sending.producer_options import ProducerOptions
from minimq_common.batch_builder import BatchBuilder
from minimq_common.model import Message
from minimq_common.single_batch import encode_single


class NewMessage(Protocol):
    """A message on its way into a batch."""

    @property
    def message(self) -> Message: ...  # noqa: D102 - its content

    @property
    def size(self) -> int: ...  # noqa: D102 - of that, in bytes

    @property
    def born_ms(self) -> int: ...  # noqa: D102 - when it was handed in, in ms since 1970


class BatchEncoder:
    """Encodes the batches of one producer. Thread-safe."""

    def __init__(self, options: ProducerOptions) -> None:
        self._max_body_bytes = options.max_body_bytes
        self._compression = options.batch_compression
        self.producer_id = random.getrandbits(64) or 1  # 0 stands for a producer that does not number its batches

    def encode_messages(self, items: Sequence[NewMessage], message_group: str | None, number: BatchNumber) -> bytes:
        """Return the encoded messages of a batch. Raises any error that a modified message can cause."""
        if len(items) == 1 and self._compression is None and message_group is None:
            item = items[0]
            single = encode_single(item.message, self._max_body_bytes, item.born_ms, self.producer_id, *number)
            if single is not None:
                return single
        builder = BatchBuilder(self._max_body_bytes, self._compression, message_group)
        builder.add([item.message for item in items])
        return self.encode_records(builder, [item.born_ms for item in items], number)

    def encode_records(self, records: Records, born_ms: int | list[int], number: BatchNumber) -> bytes:
        """Return encoded records. Raises `InvalidArgument`."""
        return records.build(born_ms, self.producer_id, *number)
