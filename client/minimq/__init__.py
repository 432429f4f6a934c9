"""The client of minimq, a durable, ordered and replayable message queue.

Sending:    `Producer`, `Message`, `SendReceipt`, `Reply`; for asyncio `minimq.aio`
            `TransactionalProducer`: messages that depend on a commit elsewhere
Receiving:  `PullConsumer`, `PushConsumer`, `ConsumeResult`, `RetryLater`, `ReceivedMessage`
            `WorkQueueConsumer`, `WorkQueueMessage`: messages one by one
Running:    `Admin`, `Compaction`, `LocalCluster`
Sharing:    `Cluster`, a connection that several of these may share; `Credentials` for clusters with TLS

Each name is imported when it is first used, so `import minimq` alone costs next to nothing.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

# gRPC reads this when it is imported. Its fork handlers crash forked children of a process with an open client, even
# children that use no client.
if "grpc" not in sys.modules:
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__version__ = "0.1.0"

__all__ = [
    # Sending
    "Message",
    "MessageFields",
    "Producer",
    "ProducerOptions",
    "ProducerStatistics",
    "RecallResult",
    "Reply",
    "SendInterceptor",
    "SendReceipt",
    "SendStatus",
    "TransactionResolution",
    "TransactionalProducer",
    "by_consistent_hash",
    "by_hash",
    "by_random",
    # Receiving
    "AllocationStrategy",
    "ConsumeResult",
    "ConsumerOptions",
    "OffsetReset",
    "WorkQueueMessage",
    "PullConsumer",
    "PushConsumer",
    "PushConsumerOptions",
    "ReceiveInterceptor",
    "ReceivedMessage",
    "RetryLater",
    "WorkQueueConsumer",
    "allocation_strategy",
    # Running
    "Admin",
    "Compaction",
    "LocalCluster",
    # Shared
    "Cluster",
    "Credentials",
    "MessageQueue",
    "MinimqError",
    "Permission",
    "errors",
]

if TYPE_CHECKING:
    from minimq import errors
    from minimq.admin.admin import Admin
    from minimq.admin.descriptions import Compaction
    from minimq.connection.cluster import Cluster
    from minimq.consumer import PullConsumer, PushConsumer, WorkQueueConsumer
    from minimq.consuming.consumer_options import ConsumerOptions
    from minimq.consuming.interceptor import ReceiveInterceptor
    from minimq.consuming.queue_decisions import OffsetReset
    from minimq.consuming.received import ReceivedMessage
    from minimq.features.delayed.recalls import RecallResult
    from minimq.features.half_messages.resolutions import TransactionResolution
    from minimq.features.half_messages.transactional_producer import TransactionalProducer
    from minimq.features.listeners.listener import ConsumeResult, RetryLater
    from minimq.features.listeners.listener_options import PushConsumerOptions
    from minimq.features.requests.reply import Reply
    from minimq.features.work_queues.work_queue_message import WorkQueueMessage
    from minimq.local.local_cluster import LocalCluster
    from minimq.producer import Producer
    from minimq.rebalance import AllocationStrategy, allocation_strategy
    from minimq.sending.interceptor import SendInterceptor
    from minimq.sending.producer_options import ProducerOptions
    from minimq.sending.receipt import SendReceipt, SendStatus
    from minimq.sending.selectors import by_consistent_hash, by_hash, by_random
    from minimq.sending.statistics import ProducerStatistics
    from minimq_common.errors import MinimqError
    from minimq_common.model import Message, MessageFields, MessageQueue, Permission
    from minimq_common.security.credentials import Credentials
else:
    # Hidden from type checkers, which would otherwise accept any name. The names are those above.
    _MODULES = {
        "Admin": "minimq.admin.admin",
        "AllocationStrategy": "minimq.rebalance",
        "Cluster": "minimq.connection.cluster",
        "Compaction": "minimq.admin.descriptions",
        "ConsumeResult": "minimq.features.listeners.listener",
        "ConsumerOptions": "minimq.consuming.consumer_options",
        "Credentials": "minimq_common.security.credentials",
        "LocalCluster": "minimq.local.local_cluster",
        "Message": "minimq_common.model",
        "MessageFields": "minimq_common.model",
        "MessageQueue": "minimq_common.model",
        "MinimqError": "minimq_common.errors",
        "OffsetReset": "minimq.consuming.queue_decisions",
        "Permission": "minimq_common.model",
        "WorkQueueMessage": "minimq.features.work_queues.work_queue_message",
        "Producer": "minimq.producer",
        "ProducerOptions": "minimq.sending.producer_options",
        "ProducerStatistics": "minimq.sending.statistics",
        "PullConsumer": "minimq.consumer",
        "PushConsumer": "minimq.consumer",
        "PushConsumerOptions": "minimq.features.listeners.listener_options",
        "RecallResult": "minimq.features.delayed.recalls",
        "ReceiveInterceptor": "minimq.consuming.interceptor",
        "ReceivedMessage": "minimq.consuming.received",
        "Reply": "minimq.features.requests.reply",
        "RetryLater": "minimq.features.listeners.listener",
        "SendInterceptor": "minimq.sending.interceptor",
        "SendReceipt": "minimq.sending.receipt",
        "SendStatus": "minimq.sending.receipt",
        "WorkQueueConsumer": "minimq.consumer",
        "TransactionResolution": "minimq.features.half_messages.resolutions",
        "TransactionalProducer": "minimq.features.half_messages.transactional_producer",
        "allocation_strategy": "minimq.rebalance",
        "by_consistent_hash": "minimq.sending.selectors",
        "by_hash": "minimq.sending.selectors",
        "by_random": "minimq.sending.selectors",
        "errors": "minimq.errors",
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(_MODULES[name])
        value = globals()[name] = module if name == "errors" else getattr(module, name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
