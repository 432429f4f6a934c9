"""Messages as consumers receive them, without a server."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from minimq.consuming.received import EncodedRecords, ReceivedBatch, ReceivedMessage
from minimq_common.batch.builder import BatchBuilder
from minimq_common.model import NO_PROPERTIES, Message, MessageQueue

_PRODUCER_ID = 1
_MAX_BODY_BYTES = 32 << 20


def as_received(
    message: Message, queue_offset: int = 0, added_properties: Mapping[str, str] = NO_PROPERTIES
) -> ReceivedMessage:
    """Return a message as a consumer receives it, from queue 0 of a broker named "memory": encoded and decoded."""
    message = msgspec.structs.replace(message, properties={**message.properties, **added_properties})
    builder = BatchBuilder(_MAX_BODY_BYTES, message_group=message.message_group)
    builder.add([message])
    now_ms = time.time_ns() // 1_000_000
    data = builder.build(now_ms, _PRODUCER_ID, queue_offset)
    stored = EncodedRecords(queue_offset, now_ms, 0, 1, data, is_compacted=message.is_tombstone)
    [received] = ReceivedBatch(MessageQueue(message.topic, "memory", 0), stored).messages(queue_offset)
    return received
