"""One message in a list of messages."""

from __future__ import annotations

from datetime import datetime

import msgspec

from minimq import ReceivedMessage
from minimq_common.errors import CorruptBatch
from minimq_console.body_text import preview

#: Keys that a row shows.
_MOST_KEYS = 20


class MessageRow(msgspec.Struct, frozen=True):
    """One message."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    message_id: str
    stored_at: datetime
    tag: str | None
    keys: tuple[str, ...]
    size: int
    preview: str
    is_tombstone: bool = False
    #: Why its keys cannot be read; None if they can.
    damaged: str | None = None


def row_of(message: ReceivedMessage) -> MessageRow:
    """Return the row of a message."""
    damaged: str | None = None
    keys: tuple[str, ...] = ()
    try:
        keys = tuple(message.keys[:_MOST_KEYS])
    except CorruptBatch as error:
        damaged = error.message
    return MessageRow(
        topic=message.topic,
        broker=message.queue.broker_name,
        queue_id=message.queue.queue_id,
        offset=message.queue_offset,
        message_id=message.message_id,
        stored_at=message.stored_at,
        tag=message.tag,
        keys=keys,
        size=len(message.body),
        preview=preview(message.body),
        is_tombstone=message.is_tombstone,
        damaged=damaged,
    )
