"""Building blocks of connectors to other systems: columns instead of messages, ranges of offsets, transactions.

Programs that send and receive messages do not need this module. A connector, such as the one for Spark, imports only
`minimq` and this module, whose interfaces are stable.

Writing: `RecordsSender` sends batches that a connector builds from its own columns (`BatchColumns`).
Transactions: batches sent under a `Transaction` are staged; `TransactionCommitter` commits them at all brokers, exactly
once.
Reading: `QueueFinder` finds queues and their ends, `RangeReader` reads a range of one.
Retrying: `with_retries` retries calls while servers are down, `describe_offline` describes the brokers that are down.
"""

from __future__ import annotations

from minimq.connection.at_master import with_retries
from minimq.connection.offline_brokers import describe_offline
from minimq.connection.retry_schedule import after_waiting
from minimq.consuming.message_filter import MessageFilter, TagFilter
from minimq.consuming.queue_finder import QueueFinder
from minimq.consuming.range_reader import RangeOptions, RangeReader
from minimq.consuming.received import ReceivedBatch
from minimq.features.transactions.decisions import Decision, StagedPart, Transaction, staged_parts
from minimq.features.transactions.transactions import RecordsSender, TransactionCommitter
from minimq.sending.producer_options import CompressionName
from minimq.sending.receipt import BatchReceipt
from minimq.sending.selectors import java_hash
from minimq_common.batch.builder import BatchColumns, check_metadata, tag_section
from minimq_common.batch.compression import Compression
from minimq_common.batch.header import MAX_METADATA, SEPARATOR, Section
from minimq_common.batch.record_origins import RecordOrigin, RecordOrigins
from minimq_common.batch.records import RecordBatch, message_id
from minimq_common.model import TopicId, TopicRoute
from minimq_common.moments import timestamp_ms
from minimq_common.names import ONE_TIME_TRANSACTIONS, check_address

__all__ = [
    "MAX_METADATA",
    "ONE_TIME_TRANSACTIONS",
    "SEPARATOR",
    "BatchColumns",
    "BatchReceipt",
    "Compression",
    "CompressionName",
    "Decision",
    "MessageFilter",
    "QueueFinder",
    "RangeOptions",
    "RangeReader",
    "ReceivedBatch",
    "RecordBatch",
    "RecordOrigin",
    "RecordOrigins",
    "RecordsSender",
    "Section",
    "StagedPart",
    "TagFilter",
    "TopicId",
    "TopicRoute",
    "Transaction",
    "TransactionCommitter",
    "after_waiting",
    "check_address",
    "check_metadata",
    "describe_offline",
    "java_hash",
    "message_id",
    "staged_parts",
    "tag_section",
    "timestamp_ms",
    "with_retries",
]
