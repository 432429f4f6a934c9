"""Sending for connectors, which have columns instead of messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from minimq.connection.cluster import Cluster
from minimq.sending.pending_batch import Records
from minimq.sending.producer_core import ProducerCore
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import BatchReceipt
from minimq.sending.transactions.decisions import Transaction
from minimq.transport.dropped import WhenDropped
from minimq_common.errors import SendFailed
from minimq_common.model import MessageQueue


class RecordsSender:
    """Sends prepared batches. Thread-safe; a context manager; lives as long as its process, and not in a fork of it."""

    def __init__(
        self, nameserver: str | Sequence[str] | Cluster | None = None, options: ProducerOptions | None = None
    ) -> None:
        self._core = ProducerCore(nameserver, options or ProducerOptions(), ())
        self._when_dropped = WhenDropped(self, self._core.release)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close; after an error without waiting for what is on its way."""
        try:
            self.close(None if error is None else 0.0)
        except SendFailed:
            if error is None:  # otherwise the error that is on its way says more
                raise

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues among which keys are spread, sorted by broker name and id; see `OrderedQueues`.

        These are the writable ones, and with them those of brokers that were there before and are away: a key keeps its
        queue. Raises `TopicNotFound` and `Unavailable`.
        """
        return self._core.queues(topic)

    def key_queue(self, topic: str) -> Callable[[str], MessageQueue] | None:
        """Return what tells the queue of a key in a compacted topic; None for any other topic. Raises as `queues`."""
        return self._core.key_queue(topic)

    def send(
        self, topic: str, queue: MessageQueue | None, records: Records, *, transaction: Transaction | None = None
    ) -> Future[BatchReceipt]:
        """Send records as one batch; wait only for room in the buffer."""
        return self._core.send_records(topic, queue, records, transaction)

    def close(self, timeout_s: float | None = None) -> None:
        """Take nothing in any more, wait for what is on its way, and end; raises `SendFailed`. Idempotent."""
        self._when_dropped.closed()
        self._core.close(timeout_s)
