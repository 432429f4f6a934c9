"""Bounds of the `.proto` files to which code refers, and some that are no bound of a field."""

from __future__ import annotations

from typing import Any

from minimq_proto.v1 import attend_pb2, broker_pb2, nameserver_pb2, options_pb2


def _of(message: Any, field: str, bound: Any = options_pb2.max_items) -> int:
    return int(message.DESCRIPTOR.fields_by_name[field].GetOptions().Extensions[bound])


#: Bytes of the largest frame: it carries a whole batch.
MAX_FRAME_BYTES = int(options_pb2.FRAME)
#: Bytes of the document of users and rules, in either form.
MAX_DOCUMENT_BYTES = int(options_pb2.DOCUMENT)
#: Characters of what the messages of one topic are filtered by.
MAX_FILTER = int(options_pb2.FILTER)
#: Characters of the different topics and filters of one group, which are durable.
MAX_AGREED = 256 << 10
MAX_TAGS = _of(broker_pb2.PullRequest, "tag_hashes")
#: Queues that one request names, and offsets that one commit has. Clients say more in several requests, 1,000 in each.
MAX_NAMED = _of(broker_pb2.CommitOffsetsRequest, "offsets")
#: Topics that one member of a group subscribes to.
MAX_SUBSCRIPTIONS = _of(broker_pb2.JoinGroup, "topics")

#: Messages that one take hands out, and spans of messages that one answer names.
MAX_TAKEN = _of(broker_pb2.PopTake, "max_messages", options_pb2.max)
MAX_SPANS = _of(broker_pb2.PopSettle, "spans") // 2
MAX_TAKES = _of(broker_pb2.PopRequest, "takes")
MAX_SETTLES = _of(broker_pb2.PopRequest, "settles")
#: Batches of which a client says that it has them.
MAX_HAVE = _of(broker_pb2.PopTake, "have")
MIN_INVISIBLE_MS = _of(broker_pb2.PopTake, "invisible_ms", options_pb2.min)
MAX_INVISIBLE_MS = _of(broker_pb2.PopTake, "invisible_ms", options_pb2.max)
#: How long messages of a batch that broker or client cannot read are set aside.
SET_ASIDE_MS = 3_600_000

#: Requests that travel with another.
MAX_JOINED_APPENDS = _of(broker_pb2.AppendRequest, "joined")
#: Batches of one atomic append, and bytes of all of them: they go to the replicas in one frame.
MAX_ATOMIC_BATCHES = _of(broker_pb2.AtomicAppend, "batches")
MAX_ATOMIC_BYTES = 8 << 20

#: Brokers and producers that have to do with one transaction, and batches of one producer in it.
MAX_BROKERS = _of(broker_pb2.Decision, "broker_names")
MAX_PARTS = _of(broker_pb2.Decision, "parts")
MAX_SEQUENCES = _of(broker_pb2.StagedPart, "sequences")

INBOX_BYTES = int(options_pb2.INBOX)
#: Inboxes for which one request has replies, and replies for each of them.
MAX_INBOXES = _of(attend_pb2.ReplyRequest, "inboxes")
MAX_REPLIES = _of(attend_pb2.InboxReplies, "count", options_pb2.max)
MAX_CORRELATION_ID = int(options_pb2.CORRELATION_ID)

#: Topics that one broker carries, whatever its options say; its own bound is `--max-topics`.
MAX_TOPICS = _of(nameserver_pb2.TopicGroup, "topics")
#: Topics that one client watches.
MAX_WATCHED = _of(nameserver_pb2.WatchRoutesRequest, "topics")

#: Longest time for which a queue is held for its former owner.
DAY_MS = _of(broker_pb2.JoinGroup, "hold_ms", options_pb2.max)
YEAR_MS = _of(broker_pb2.Compaction, "min_lag_ms", options_pb2.max)
MAX_RETENTION_MS = _of(broker_pb2.Topic, "retention_ms", options_pb2.max)
MAX_NUMBER = (1 << 63) - 1
