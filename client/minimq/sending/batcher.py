"""Messages in batches: which belong together, and how a batch is encoded. Thread-safe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minimq.sending.batch_encoder import BatchEncoder, NewMessage
from minimq.sending.pending_batch import BatchNumber
from minimq.sending.producer_options import ProducerOptions
from minimq_common.model import MessageQueue


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
