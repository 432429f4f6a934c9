"""The bounds of everything that travels: one table for all messages of the protocol. Pure.

Every text, bytes, list and map of every message has a line here, and every number whose range matters: a test looks
through all descriptors. Servers check a request against it before they look at it (`bound_check`, `Dispatcher`), and
what they take from their peers. Which characters a name may have is decided in `names`, and what replicas say of each
other in `replica_bounds`.

Two kinds of bounds are not looked at one by one. A field of `FRAME_*` is bounded by the frame that it comes in, and by
who reads it: a batch by the options of the broker, the answers to a client by what the server holds. Items of a list
that is not walked are checked by their reader, a part at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

from minimq_common.batch.records import MAX_METADATA
from minimq_common.model import MAX_BROKERS_OF_A_TOPIC, MAX_QUEUES, MAX_QUEUES_OF_A_TOPIC
from minimq_common.names import MAX_ADDRESS, MAX_BROKER, MAX_CLIENT_ID, MAX_GROUP, MAX_TOPIC, MAX_TRANSACTION
from minimq_common.trace_parent import PARENT_CHARACTERS
from minimq_common.wire.bound_kinds import Bound, Entries, Items, Octets, Range, Text
from minimq_common.wire.replica_bounds import MAX_REPLICAS, MAX_TERM

#: Bytes of the largest frame: it carries a whole batch, the largest body (4 MiB by default, 32 MiB at most) with its
#: columns.
MAX_FRAME_BYTES = 64 << 20

#: Most bytes of the document of users and rules, in either form.
MAX_DOCUMENT_BYTES = 1 << 20

#: Queues that one request names, and offsets that one commit has. Clients say more in several requests, 1,000 in each.
MAX_NAMED = 4_096
#: Items of other lists: queues and brokers of a route, terms of a log.
MAX_ITEMS = 10_000
#: Topics that one member of a group subscribes to.
MAX_SUBSCRIPTIONS = 1_024
#: Characters of what the messages of one topic are filtered by.
MAX_FILTER = 65_536
#: Characters of the different topics and filters of one group, which are durable.
MAX_AGREED = 256 << 10
#: Tags that a pull asks for.
MAX_TAGS = 1_000
#: Messages that one take hands out, and spans of messages that one answer names.
MAX_TAKEN = 10_000
MAX_SPANS = 5_000
#: Takes, and answers, in one request; batches of which a client says that it has them.
MAX_TAKES = 64
MAX_SETTLES = 1_000
MAX_HAVE = 16
#: Requests that travel with another.
MAX_JOINED_APPENDS = 255
#: Batches of one atomic append, and bytes of all of them: they go to the replicas in one frame.
MAX_ATOMIC_BATCHES = 1_000
#: Atomic appends that one request has.
MAX_ATOMIC_APPENDS = 256
MAX_ATOMIC_BYTES = 8 << 20
#: Delayed batches that one request recalls, and that one page lists.
MAX_RECALLED = 1_000
MAX_LISTED = 1_000
#: How long messages are kept from others, in ms.
MIN_INVISIBLE_MS = 1_000
MAX_INVISIBLE_MS = 12 * 3_600_000
#: How long messages of a damaged batch are set aside, in ms: by the broker that cannot read it, or the client that
#: cannot open it.
SET_ASIDE_MS = 3_600_000
#: Topics that one broker carries, whatever its options say; its own bound is `--max-topics`.
MAX_TOPICS = 50_000
#: Topics that one client watches.
MAX_WATCHED = 20_000
#: Brokers and producers that have to do with one transaction, and batches of one producer in it.
MAX_BROKERS = 1_000
MAX_PRODUCERS = 10_000
MAX_SEQUENCES = 200_000
#: Transactions with half messages that one request ends.
MAX_ENDS = 1_000
#: Rights that one request asks about.
MAX_RIGHTS = 1_000
#: Producer groups of one client that attends, and bytes of the key of its inbox.
MAX_PRODUCER_GROUPS = 64
MAX_INBOX_KEY = 64
#: Inboxes, by their addresses of so many bytes, for which one request has replies, and replies for each of them.
MAX_INBOXES = 256
INBOX_BYTES = 16
MAX_REPLIES = 10_000
MAX_CORRELATION_ID = 64
#: Longest time for which a queue is held for its former owner, or a broker may be silent, in ms.
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
YEAR_MS = 366 * DAY_MS
MAX_RETENTION_MS = 100 * YEAR_MS
MAX_NUMBER = (1 << 63) - 1


NAME = Text(255)
TOPIC = Text(MAX_TOPIC)
GROUP = Text(MAX_GROUP)
BROKER = Text(MAX_BROKER)
CLUSTER = Text(MAX_BROKER)
TRANSACTION = Text(MAX_TRANSACTION)
ADDRESS = Text(MAX_ADDRESS)
CLIENT_ID = Text(MAX_CLIENT_ID)
FILTER = Text(MAX_FILTER)
LOG_ID = Text(64)
CODE = Text(64)
DIGEST = Text(64)
#: A key or a value that is looked for: none that a message has is longer.
SOUGHT = Text(MAX_METADATA)

#: From 0 on: offsets, positions, epochs, numbers of things.
COUNT = Range(0, MAX_NUMBER)
TERM = Range(0, MAX_TERM)
HOLD_MS = Range(0, DAY_MS)
RETENTION_MS = Range(0, MAX_RETENTION_MS)
KEY_QUEUES = Range(0, MAX_QUEUES_OF_A_TOPIC)

TOPICS = Items(MAX_SUBSCRIPTIONS, TOPIC)
QUEUES = Items(MAX_NAMED)
REPLICAS = Items(MAX_REPLICAS)
ROUTE_BROKERS = Items(MAX_BROKERS_OF_A_TOPIC)
ADDRESSES = Entries(MAX_REPLICAS, ADDRESS)

FRAME_TEXT = Text(MAX_FRAME_BYTES)
FRAME_BYTES = Octets(MAX_FRAME_BYTES)
FRAME_ITEMS = Items(MAX_FRAME_BYTES, walked=False)

#: In which all messages of the protocol are.
PACKAGE = "minimq.v1."

#: Of the calls of brokers, by message and field; `server_bounds` has all others as well.
BOUNDS: Mapping[str, Mapping[str, Bound]] = {
    # ---- errors.proto ---------------------------------------------------------------------------
    "Failure": {"code": CODE, "message": FRAME_TEXT},
    # ---- broker.proto: sending and reading ------------------------------------------------------
    "AppendRequest": {
        "topic": TOPIC,
        "batch": FRAME_BYTES,
        "traceparent": Text(PARENT_CHARACTERS),
        "key_queues": KEY_QUEUES,
        "joined": Items(MAX_JOINED_APPENDS, walked=False),
    },
    "Transaction": {"name": TRANSACTION, "number": COUNT},
    "AppendResult": {},
    "AppendResponse": {"results": FRAME_ITEMS},
    "AtomicBatch": {"topic": TOPIC, "batch": FRAME_BYTES, "begins_at": COUNT},
    "AtomicProgress": {"begins": Items(MAX_NAMED, COUNT), "group": GROUP, "settles": Items(MAX_SETTLES)},
    "AtomicAppend": {"batches": Items(MAX_ATOMIC_BATCHES)},
    "AtomicAppendRequest": {"appends": Items(MAX_ATOMIC_APPENDS, walked=False)},
    "AtomicAppendResult": {"batches": FRAME_ITEMS},
    "AtomicAppendResponse": {"results": FRAME_ITEMS},
    "PullRequest": {
        "topic": TOPIC,
        "max_messages": Range(1, MAX_NUMBER),
        "max_bytes": Range(1, MAX_NUMBER),
        "tag_hashes": Items(MAX_TAGS),
        "term": TERM,
    },
    "TopicId": {"number": COUNT, "created_ms": COUNT},
    "StoredBatch": {"batch": FRAME_BYTES},
    "PullFrame": {
        "batches": FRAME_ITEMS,
        "min_offset": COUNT,
        "max_offset": COUNT,
        "next_offset": COUNT,
        "term": TERM,
    },
    # ---- broker.proto: taking messages one by one -----------------------------------------------
    "PopRequest": {
        "group": GROUP,
        "client_id": CLIENT_ID,
        "settles": Items(MAX_SETTLES),
        "takes": Items(MAX_TAKES),
        "cancels": Items(MAX_TAKES, COUNT),
    },
    "PopTake": {
        "id": COUNT,
        "topic": TOPIC,
        "max_messages": Range(1, MAX_TAKEN),
        "max_bytes": Range(1, MAX_FRAME_BYTES),
        "invisible_ms": Range(MIN_INVISIBLE_MS, MAX_INVISIBLE_MS),
        "wait_ms": Range(0, 60_000),
        "have": Items(MAX_HAVE, COUNT),
        "filter": FILTER,
        "tag_hashes": Items(MAX_TAGS),
    },
    "PopSettle": {
        "id": COUNT,
        "topic": TOPIC,
        "epoch": COUNT,
        "spans": Items(2 * MAX_SPANS, COUNT),
        "duration_ms": Range(0, MAX_INVISIBLE_MS),
    },
    "PoppedRun": {"first": COUNT, "count": COUNT, "tries": COUNT, "lost": COUNT},
    "PoppedMessages": {
        "epoch": COUNT,
        "invisible_ms": COUNT,
        "runs": FRAME_ITEMS,
        "batches": FRAME_ITEMS,
    },
    "PopResult": {"id": COUNT, "expired": Items(2 * MAX_SPANS, COUNT)},
    "PopResponse": {"results": FRAME_ITEMS},
    # ---- attend.proto ---------------------------------------------------------------------------
    "AttendRequest": {
        "client_id": CLIENT_ID,
        "inbox_key": Octets(MAX_INBOX_KEY),
        "producer_groups": Items(MAX_PRODUCER_GROUPS, GROUP),
        "producer_ids": Items(MAX_PRODUCER_GROUPS),
    },
    "Attending": {},
    "AttendEvent": {"replies": FRAME_BYTES},
    "RequestReply": {
        "correlation_id": Text(MAX_CORRELATION_ID),
        "body": FRAME_BYTES,
        "properties": Entries(MAX_ITEMS, FRAME_TEXT),
        "error": FRAME_TEXT,
    },
    "ReplyBatch": {"replies": FRAME_ITEMS},
    "InboxReplies": {"inbox": Octets(INBOX_BYTES), "replies": FRAME_BYTES, "count": Range(1, MAX_REPLIES)},
    "ReplyRequest": {"request_id": COUNT, "inboxes": Items(MAX_INBOXES)},
    "ReplyResponse": {"request_id": COUNT, "outcomes": Items(MAX_INBOXES)},
    # ---- delay.proto ----------------------------------------------------------------------------
    "Delay": {"delay_ms": COUNT, "due_ms": COUNT},
    "DelayedKey": {"due_ms": COUNT, "recall_id": COUNT},
    "RecallRequest": {"topic": TOPIC, "keys": Items(MAX_RECALLED)},
    "RecallResponse": {"outcomes": Items(MAX_RECALLED)},
    "ListDelayedRequest": {
        "topic": TOPIC,
        "from_ms": COUNT,
        "before_ms": COUNT,
        "max_batches": Range(1, MAX_LISTED),
    },
    "DelayedBatch": {"count": COUNT, "size": COUNT, "batch": FRAME_BYTES},
    "ListDelayedResponse": {"batches": Items(MAX_LISTED)},
    # ---- find.proto -----------------------------------------------------------------------------
    "FindRequest": {
        "topic": TOPIC,
        "offset": COUNT,
        "end_offset": COUNT,
        "since_ms": COUNT,
        "before_ms": COUNT,
        "key": SOUGHT,
        "property_value": SOUGHT,
    },
    "MessageNumber": {},
    "TraceMessageRequest": {"topic": TOPIC, "offset": COUNT},
    "GroupProgress": {"group": GROUP, "client_id": CLIENT_ID, "tries": COUNT, "until_ms": COUNT},
    "TraceMessageResponse": {"groups": FRAME_ITEMS},
    "FoundBatch": {"batch": FRAME_BYTES},
    "UnreadableOffsets": {"reason": FRAME_TEXT},
    "FindResponse": {"batches": FRAME_ITEMS, "unreadable": FRAME_ITEMS, "next_offset": COUNT, "end_offset": COUNT},
    # ---- broker.proto: transactions -------------------------------------------------------------
    "StagedBatches": {"sequences": Items(MAX_SEQUENCES)},
    "BrokerPart": {"broker_name": BROKER, "batches": Items(MAX_PRODUCERS)},
    "Decision": {"number": COUNT, "parts": Items(MAX_BROKERS), "broker_names": Items(MAX_BROKERS, BROKER)},
    "CommitTransactionRequest": {"name": TRANSACTION},
    "CommitTransactionResponse": {},
    "DescribeTransactionRequest": {"name": TRANSACTION, "number": COUNT, "batches": Items(MAX_PRODUCERS)},
    "DescribeTransactionResponse": {},
    # ---- halves.proto ---------------------------------------------------------------------------
    "EndHalfRequest": {"producer_group": GROUP, "number": COUNT, "batches": Range(0, MAX_SEQUENCES)},
    "EndHalvesRequest": {"ends": Items(MAX_ENDS)},
    "EndHalfResult": {},
    "EndHalfResponse": {"results": FRAME_ITEMS},
    "CheckHalf": {"producer_group": GROUP, "topic": TOPIC, "batch": FRAME_BYTES},
    "ListHalvesRequest": {"producer_group": GROUP, "number": Range(-1, MAX_NUMBER), "most": Range(1, MAX_ITEMS)},
    "OpenHalf": {"producer_group": GROUP, "topics": FRAME_ITEMS, "batch": FRAME_BYTES},
    "ListHalvesResponse": {"halves": FRAME_ITEMS},
    # ---- broker.proto: topics -------------------------------------------------------------------
    "Topic": {"topic": TOPIC, "retention_ms": RETENTION_MS, "retention_bytes": COUNT},
    "Compaction": {
        "key_queues": KEY_QUEUES,
        "min_lag_ms": Range(0, YEAR_MS),
        "tombstone_ms": Range(0, YEAR_MS),
        "dirty_percent": Range(1, 100),
    },
    "QueueStatus": {},
    "CreateTopicRequest": {},
    "CreateTopicResponse": {},
    "UpdateTopicRequest": {
        "topic": TOPIC,
        "ignored_groups": Items(MAX_NAMED, GROUP),
        "retention_ms": RETENTION_MS,
        "retention_bytes": COUNT,
    },
    "UpdateTopicResponse": {},
    "DeleteTopicRequest": {"topic": TOPIC},
    "DeleteTopicResponse": {},
    "DescribeTopicRequest": {"topic": TOPIC},
    "DescribeTopicResponse": {"queues": Items(MAX_QUEUES)},
    # ---- broker.proto: offsets ------------------------------------------------------------------
    "GetOffsetRequest": {"topic": TOPIC},
    "GetOffsetResponse": {},
    "QueueOffset": {"topic": TOPIC, "epoch": COUNT, "term": TERM, "tries": COUNT, "in_hand_end": COUNT},
    "CommitOffsetsRequest": {"group": GROUP, "client_id": CLIENT_ID, "offsets": QUEUES},
    "CommitOffsetsResponse": {},
    "GetCommittedRequest": {"group": GROUP, "topic": TOPIC},
    "GetCommittedResponse": {"offsets": FRAME_ITEMS},
    # ---- broker.proto: consumer groups ----------------------------------------------------------
    "Lease": {"group": GROUP, "client_id": CLIENT_ID, "epoch": COUNT},
    "StartPosition": {},
    "JoinGroup": {
        "group": GROUP,
        "topics": TOPICS,
        "allocation": NAME,
        "hold_ms": HOLD_MS,
        "filters": Items(MAX_SUBSCRIPTIONS, FILTER),
        "held": QUEUES,
    },
    "QueueName": {"topic": TOPIC, "broker_name": BROKER},
    "Holding": {"group": GROUP, "queues": QUEUES},
    "QueueEpoch": {"topic": TOPIC, "epoch": COUNT, "given_back": COUNT},
    "AcquireQueues": {"group": GROUP, "queues": QUEUES, "begun": Items(MAX_SUBSCRIPTIONS)},
    "TopicBegun": {"topic": TOPIC, "ago_ms": COUNT},
    "StateSaved": {"group": GROUP, "queues": QUEUES},
    "ReleaseQueues": {"group": GROUP, "queues": QUEUES},
    "LeaveGroup": {"group": GROUP},
    "SessionRequest": {"client_id": CLIENT_ID},
    "Heartbeat": {},
    "GroupMembers": {
        "group": GROUP,
        "client_ids": FRAME_ITEMS,
        "held": FRAME_ITEMS,
        "begun": FRAME_ITEMS,
        "topics": FRAME_ITEMS,
        "grace_ms": HOLD_MS,
    },
    "MemberTopics": {"client_id": CLIENT_ID, "topics": TOPICS},
    "MemberQueues": {"client_id": CLIENT_ID, "queues": FRAME_ITEMS},
    "QueueGranted": {
        "group": GROUP,
        "topic": TOPIC,
        "offset": COUNT,
        "tries": COUNT,
        "in_hand_end": COUNT,
        "queue_end": COUNT,
    },
    "QueueWanted": {"group": GROUP, "topic": TOPIC},
    "SessionRefused": {"group": GROUP},
    "ConflictOver": {"group": GROUP},
    "SessionEvent": {},
    "PopHolder": {"client_id": CLIENT_ID, "messages": COUNT},
    "PoppedQueue": {
        "in_flight": COUNT,
        "returned": COUNT,
        "settled_ahead": COUNT,
        "most_tries": COUNT,
        "holders": FRAME_ITEMS,
        "missed": COUNT,
    },
    "GroupQueue": {"topic": TOPIC, "owner": CLIENT_ID, "holder": CLIENT_ID, "waiting": FRAME_ITEMS},
    "DescribeGroupRequest": {"group": GROUP},
    "DescribeGroupResponse": {
        "client_ids": FRAME_ITEMS,
        "allocation": NAME,
        "queues": FRAME_ITEMS,
        "topics": FRAME_ITEMS,
    },
    "DeleteGroupRequest": {"group": GROUP},
    "DeleteGroupResponse": {},
    "ListGroupsRequest": {},
    "ListGroupsResponse": {"groups": FRAME_ITEMS},
    "ResetOffsetsRequest": {"group": GROUP, "topic": TOPIC, "queue_ids": Items(MAX_QUEUES)},
    "ResetOffsetsResponse": {"offsets": Items(MAX_QUEUES)},
    # ---- broker.proto: the broker itself --------------------------------------------------------
    "SetPermissionRequest": {},
    "SetPermissionResponse": {},
    "GetAccessRequest": {},
    "GetAccessResponse": {"document": Octets(MAX_DOCUMENT_BYTES)},
    "SetAccessRequest": {"expected_version": COUNT, "document": Octets(MAX_DOCUMENT_BYTES)},
    "SetAccessResponse": {},
    "ProbeRequest": {},
    "ProbeResponse": {},
    "PromoteRequest": {},
    "PromoteResponse": {},
    "GetStatusRequest": {},
    "GetStatusResponse": {"cluster": CLUSTER, "broker_name": BROKER, "version": NAME, "access_digest": DIGEST},
    "ReplicaStatus": {},
    "ReplicationStatus": {"master_address": ADDRESS, "in_sync": REPLICAS, "replicas": FRAME_ITEMS},
}
