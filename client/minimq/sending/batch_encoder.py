"""Makes numbered batches of messages and records: which travel together, and how they are encoded."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

from minimq.sending.pending_batch import BatchNumber
from minimq.sending.producer_options import ProducerOptions
from minimq_common.batch.builder import BatchBuilder
from minimq_common.batch.compression import Compression
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


def new_producer_id() -> int:
    """Return an id that no other producer has; 0 stands for a producer that does not number its batches."""
    return random.getrandbits(64) or 1


def encode_batch(
    max_body_bytes: int,
    compression: Compression | None,
    producer_id: int,
    items: Sequence[NewMessage],
    message_group: str | None,
    number: BatchNumber,
) -> bytes:
    """Return the encoded messages of a batch. Raises any error that a modified message can cause."""
    if len(items) == 1 and compression is None and message_group is None:
        item = items[0]
        single = encode_single(item.message, max_body_bytes, item.born_ms, producer_id, *number)
        if single is not None:
            return single
    builder = BatchBuilder(max_body_bytes, compression, message_group)
    builder.add([item.message for item in items])
    return builder.build([item.born_ms for item in items], producer_id, *number)


class Part(NamedTuple):
    """The messages that make one batch: their queue, message group, and indices."""

    queue: MessageQueue
    message_group: str | None
    indices: list[int]


class Batcher:
    """Makes the batches of one producer."""

    def __init__(self, options: ProducerOptions) -> None:
        self._most, self._most_bytes = options.batch_messages, options.batch_bytes
        self.producer_id = new_producer_id()
        self._encode = partial(encode_batch, options.max_body_bytes, options.batch_compression, self.producer_id)

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
        chosen = [items[index] for index in part.indices]
        return self._encode(chosen, part.message_group, number)
