"""Finds the message group of a message that blocks a work queue."""

from __future__ import annotations

import struct

import lmdb

from minimq_broker.calls.engine import Engine
from minimq_broker.features.work_queues.pop_runs import PopKey
from minimq_broker.features.work_queues.work_queue_members import Blocking
from minimq_broker.log.rows import ReadLimits
from minimq_broker.state.state import QueueKey
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import MinimqError
from minimq_common.properties import MESSAGE_GROUP


def blocking(engine: Engine, key: PopKey, offset: int) -> Blocking:
    """Return a message of a queue with its message group; "" if it has none, or cannot be read."""
    name = ""
    try:
        batches, _ = engine.store.search(QueueKey(key.topic_id, key.queue_id), offset, ReadLimits(1, 1))
        batch = RecordBatch(bytes(batches[0].data))
        name = batch.properties(0).get(MESSAGE_GROUP, "")
    except (MinimqError, lmdb.Error, struct.error, LookupError):  # reading the delivered messages reports the damage
        pass
    return Blocking(offset, name)
