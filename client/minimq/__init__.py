"""The client of minimq, a durable, ordered and replayable message queue.

Sending:    `Producer`, `Message`, `SendReceipt`; for asyncio `minimq.aio`
Receiving:  `PullConsumer`, `PushConsumer`, `ConsumeResult`, `ReceivedMessage`
Running:    `Admin`, `LocalCluster`
"""

from minimq.administration.admin import Admin
from minimq.local.local_cluster import LocalCluster
from minimq.rebalance import AllocationStrategy, allocation
from minimq.receiving.consumer_options import ConsumerOptions
from minimq.receiving.pull_consumer import PullConsumer
from minimq.receiving.push_consumer import ConsumeResult, PushConsumer
from minimq.receiving.received import ReceivedMessage
from minimq.sending.interceptor import SendInterceptor
from minimq.sending.producer import Producer
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.queue_selection import by_consistent_hash, by_hash, by_random
from minimq.sending.receipt import SendReceipt, SendStatus
from minimq.sending.statistics import ProducerStatistics
from minimq_common import errors
from minimq_common.errors import MiniMQError
from minimq_common.model import Message, MessageQueue, Permission

__version__ = "0.1.0"

__all__ = [
    # Sending
    "Message",
    "Producer",
    "ProducerOptions",
    "ProducerStatistics",
    "SendInterceptor",
    "SendReceipt",
    "SendStatus",
    "by_consistent_hash",
    "by_hash",
    "by_random",
    # Receiving
    "AllocationStrategy",
    "ConsumeResult",
    "ConsumerOptions",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "allocation",
    # Running
    "Admin",
    "LocalCluster",
    # Shared
    "MessageQueue",
    "MiniMQError",
    "Permission",
    "errors",
]
