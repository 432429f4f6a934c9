"""Receipt handles: texts by which any process of a group can settle a message."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from minimq_common.errors import InvalidArgument
from minimq_common.handle_text import from_text, to_text
from minimq_common.model import MessageQueue

#: Characters of a text that an error shows.
_SHOWN = 40


class _Parts(msgspec.Struct, frozen=True, array_like=True):
    group: str
    topic: str
    broker_name: str
    queue_id: int
    offset: int
    epoch: int


class ReceiptHandle(NamedTuple):
    """One delivery of one message.

    Attributes:
        group: the consumer group.
        queue: the queue of the message.
        offset: its offset there.
        epoch: of the delivery.
    """

    group: str
    queue: MessageQueue
    offset: int
    epoch: int

    def __str__(self) -> str:
        queue = self.queue
        return to_text(_Parts(self.group, queue.topic, queue.broker_name, queue.queue_id, self.offset, self.epoch))

    @classmethod
    def parse(cls, text: str) -> ReceiptHandle:
        """Return the handle of a text. Raises `InvalidArgument` if the text is none."""
        try:
            parts = from_text(text, _Parts)
        except ValueError:
            raise InvalidArgument(
                f"{text[:_SHOWN]!r} is no receipt handle, or a part of one: give it as the `handle` of the message was"
            ) from None
        queue = MessageQueue(parts.topic, parts.broker_name, parts.queue_id)
        return cls(parts.group, queue, parts.offset, parts.epoch)
