"""Batches that a consumer keeps are those that its broker means, also after compaction has put another one there."""

from __future__ import annotations

import pytest

from minimq.consuming.received import EncodedRecords
from minimq.features.work_queues.work_queue_message import OpenedMessageCache, gaps
from minimq_common.batch.builder import encode
from minimq_common.errors import Unavailable
from minimq_common.model import MessageQueue
from support.batches import NOW_MS, one
from support.compacted_batches import compacted_of

QUEUE = MessageQueue("t", "broker-a", 0)
POSITION = 4711


def stored(data: bytes, count: int, base_offset: int = 1000) -> EncodedRecords:
    return EncodedRecords(base_offset, NOW_MS, POSITION, count, data)


def test_a_batch_that_was_compacted_meanwhile_is_asked_for_again() -> None:
    opened = OpenedMessageCache()
    made = encode([one(), one()], NOW_MS, 1, 1, 1 << 20)
    opened.get(QUEUE, stored(made, 2, 1002), {})
    kept = opened.kept()

    with pytest.raises(Unavailable, match="compacted meanwhile"):
        opened.get(QUEUE, stored(b"", 4), kept)

    assert not opened.kept()
    joined = compacted_of([made, made], [True, False, False, True])
    found = opened.get(QUEUE, stored(joined, 4), opened.kept()).messages(1000, 1004, 1, 1, "g")
    assert [message.queue_offset for message in found] == [1000, 1003]
    assert gaps(999, 1006, found) == [(999, 1000), (1001, 1003), (1004, 1006)]
