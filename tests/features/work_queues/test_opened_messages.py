"""The batches of a work queue that a consumer keeps, so that brokers need not send them again."""

from __future__ import annotations

import pytest

from minimq import Message, MessageQueue
from minimq.consuming.received import EncodedRecords
from minimq.features.work_queues.work_queue_message import OpenedMessageCache
from minimq_common.batch.builder import BatchBuilder
from minimq_common.errors import CorruptBatch, Unavailable

QUEUE = MessageQueue("orders", "broker-a", 0)
POSITION = 4096


def stored(data: bytes) -> EncodedRecords:
    return EncodedRecords(0, 1_700_000_000_000, POSITION, 1, data)


def test_a_damaged_copy_is_asked_for_again() -> None:
    builder = BatchBuilder(1 << 20)
    builder.add([Message("orders", b"body" * 20)])
    whole = builder.build(1, 1, 0)
    damaged = whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:]
    cache = OpenedMessageCache()
    with pytest.raises(CorruptBatch):
        cache.get(QUEUE, stored(damaged), cache.kept()).messages(0, 1, 1, 1, "g")
    with pytest.raises(Unavailable):  # the broker leaves out what the consumer has
        cache.get(QUEUE, stored(b""), cache.kept())
    assert POSITION not in cache.kept()
    [message] = cache.get(QUEUE, stored(whole), cache.kept()).messages(0, 1, 1, 1, "g")
    assert message.body == b"body" * 20
