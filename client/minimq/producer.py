"""The blocking producer: its kernel, and what features add."""

from __future__ import annotations

from minimq.features.delayed.producer_methods import Delays
from minimq.features.requests.producer_methods import RequestMethods
from minimq.features.tables.producer_methods import ArrowRows
from minimq.features.transactions.producer_methods import TransactionMethods
from minimq.sending.producer import BlockingProducer


class Producer(RequestMethods, TransactionMethods, ArrowRows, Delays, BlockingProducer):
    """Sends messages; a receipt means that the message is on the disk of its broker.

    Messages go to all writable queues of their topic in turn. Messages sent while requests are in flight are batched,
    and a batch goes to one queue. A failed attempt is retried, at other brokers first; the same broker never stores a
    batch twice. Thread-safe: one producer serves a whole process.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", a sequence of addresses, or a shared `Cluster`.
        interceptors: called around each send, in their order.
        options: those of `ProducerOptions`, by name.

    Raises:
        InvalidArgument: an address or an option is invalid.
    """
