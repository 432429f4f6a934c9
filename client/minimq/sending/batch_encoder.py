"""Makes numbered batches of messages and records: which travel together, and how they are encoded."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from minimq.sending.pending_batch import BatchNumber, Records
from minimq.sending.producer_options import ProducerOptions
from minimq_common.batch.builder import BatchBuilder
from minimq_common.batch.single import encode_single
from minimq_common.model import Message, MessageQueue


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


class Part(NamedTuple):
    """The messages that make one batch: their queue, message group, and indices."""

    queue: MessageQueue
    message_group: str | None
    indices: list[int]


class Batcher:
    """Makes the batches of one producer."""

    def __init__(self, options: ProducerOptions, encoder: BatchEncoder) -> None:
        self._most, self._most_bytes = options.batch_messages, options.batch_bytes
        self._encoder = encoder
        self.producer_id = encoder.producer_id

    def parts(self, items: Sequence[NewMessage], queues: Sequence[MessageQueue]) -> list[Part]:
        """Return the batches of messages, each with its queue; those of a queue and message group keep their order."""
        parts: list[Part] = []
        filling: dict[tuple[MessageQueue, str | None], tuple[Part, int]] = {}
        for index, (item, queue) in enumerate(zip(items, queues, strict=True)):
            group = item.message.message_group
            part, size = filling.get((queue, group), (None, 0))
            if part is None or len(part.indices) >= self._most or size + item.size > self._most_bytes:
                part, size = Part(queue, group, []), 0
                parts.append(part)
            part.indices.append(index)
            filling[queue, group] = part, size + item.size
        return parts

    def encode(self, part: Part, items: Sequence[NewMessage], number: BatchNumber) -> bytes:
        """Return a batch. Raises any error that a modified message can cause."""
        return self._encoder.encode_messages([items[index] for index in part.indices], part.message_group, number)
