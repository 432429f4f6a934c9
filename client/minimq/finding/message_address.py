"""The address of a message: its queue and its offset, as one text."""

from __future__ import annotations

import msgspec

from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue
from minimq_common.names import check_broker, check_topic

#: No offset, and no number of a queue, has more digits.
_MOST_DIGITS = 18
_MOST_CHARACTERS = 1_000


class MessageAddress(msgspec.Struct, frozen=True, order=True):
    """Where a message is stored: "orders/broker-a/3@10423" is offset 10423 of queue 3 of topic orders at broker-a."""

    queue: MessageQueue
    offset: int

    def __str__(self) -> str:
        return f"{self.queue}@{self.offset}"


def parse_address(text: object) -> MessageAddress:
    """Return the address that a text says; an address itself is returned as it is. Raises `InvalidArgument`."""
    if isinstance(text, MessageAddress):
        return text
    if not isinstance(text, str) or len(text) > _MOST_CHARACTERS:
        raise _wrong(text)
    where, _, offset = text.rpartition("@")
    # The names of topics and brokers have no slash.
    parts = where.split("/")
    if len(parts) != 3 or not _is_number(offset) or not _is_number(parts[2]):
        raise _wrong(text)
    topic, broker, queue_id = parts
    return MessageAddress(MessageQueue(check_topic(topic), check_broker(broker), int(queue_id)), int(offset))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def _wrong(text: object) -> InvalidArgument:
    shown = repr(text)[:100]
    return InvalidArgument(
        f"{shown} is not the address of a message: write TOPIC/BROKER/QUEUE@OFFSET, for example orders/broker-a/3@10423"
    )
