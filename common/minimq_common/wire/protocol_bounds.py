"""The bounds of the `.proto` files that code needs, and some that are not the bound of a field."""

from __future__ import annotations

from typing import Any

from minimq_proto.v1 import broker_pb2, nameserver_pb2, options_pb2, staged_pb2, work_queues_pb2


def _of(message: Any, field: str, bound: Any = options_pb2.max_items) -> int:
    return int(message.DESCRIPTOR.fields_by_name[field].GetOptions().Extensions[bound])


#: The largest frame carries a whole batch.
MAX_FRAME_BYTES = int(options_pb2.FRAME)
#: Characters of the filter for one topic.
MAX_FILTER = int(options_pb2.FILTER)
#: Characters of all topics and filters of one group; the broker stores them.
MAX_AGREED = 256 << 10
MAX_TAGS = _of(broker_pb2.PullRequest, "tag_hashes")
#: Topics that one member of a group subscribes to.
MAX_SUBSCRIPTIONS = _of(broker_pb2.JoinGroup, "topics")

#: Messages that one take returns, and spans of messages in one answer.
MAX_TAKEN = _of(work_queues_pb2.PopTake, "max_messages", options_pb2.max)
MAX_SPANS = _of(broker_pb2.PopSettle, "spans") // 2
MAX_SETTLES = _of(work_queues_pb2.PopRequest, "settles")
#: Batches that a client already holds, so the broker need not send them again.
MAX_HAVE = _of(work_queues_pb2.PopTake, "have")
MIN_INVISIBLE_MS = _of(work_queues_pb2.PopTake, "invisible_ms", options_pb2.min)
MAX_INVISIBLE_MS = _of(work_queues_pb2.PopTake, "invisible_ms", options_pb2.max)
#: Invisible duration of messages in a batch that the broker or the client cannot read.
SET_ASIDE_MS = 3_600_000

#: Appends of one request.
MAX_APPENDS = _of(broker_pb2.AppendRequest, "appends")
#: Batches of one atomic append, and their total size: the master sends them to its replicas in one frame.
MAX_ATOMIC_BATCHES = _of(broker_pb2.AtomicAppend, "batches")
MAX_ATOMIC_BYTES = 8 << 20

#: Batches of one producer on one broker in a transaction.
MAX_SEQUENCES = _of(staged_pb2.StagedPart, "sequences")

#: Topics of one broker.
MAX_TOPICS = _of(nameserver_pb2.TopicGroup, "topics")
#: Topics that one client watches.
MAX_WATCHED = _of(nameserver_pb2.WatchRoutesRequest, "topics")

#: The longest hold of a queue for its former owner.
DAY_MS = _of(broker_pb2.JoinGroup, "handover_timeout_ms", options_pb2.max)
YEAR_MS = _of(broker_pb2.Compaction, "min_lag_ms", options_pb2.max)
MAX_RETENTION_MS = _of(broker_pb2.Topic, "retention_ms", options_pb2.max)
MAX_NUMBER = (1 << 63) - 1
