"""The work of a writing task: it sends rows as batches, and ends when all of them are acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Final

import pyarrow as pa

from minimq import MiniMQError, errors
from minimq.connectors import BatchReceipt, RecordsSender, Transaction, staged_parts
from pyspark_minimq.arrow_batch import MOST_ROWS, cut, to_batch
from pyspark_minimq.connections import records_sender
from pyspark_minimq.destinations import Destination, Destinations
from pyspark_minimq.error_line import in_one_line
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.task_commit import TaskCommit
from pyspark_minimq.text_columns import refused
from pyspark_minimq.worker_process import spare_collector
from pyspark_minimq.write_options import WriteOptions

#: Bytes of rows that wait, over all destinations, until there are enough for a batch.
GATHERED_BYTES: Final = 32 << 20


def write(options: WriteOptions, batches: Iterator[pa.RecordBatch], transaction: Transaction | None) -> TaskCommit:
    """Write the rows of a partition, and wait until all are acknowledged.

    Args:
        options: how to.
        batches: the rows.
        transaction: under which they are staged; None to publish them at once.

    Raises:
        MinimqSparkError: a row makes no message, or a batch is not acknowledged.
    """
    topics: set[str] = set()
    try:
        outbox = Outbox(records_sender(options.connection, options.producer), options, transaction)
        destinations = Destinations(options.topic, outbox.sender.queues)
        spare_collector()
        try:
            for batch in batches:
                if batch.num_rows:
                    for destination, rows in destinations.split(batch):
                        topics.add(destination.topic)
                        outbox.add(destination, rows)
            receipts = outbox.finish()
        except errors.TransactionEnded:
            for _ in batches:  # so that Spark can use this process again
                pass
            return TaskCommit(transaction, frozenset(topics), (), decided=True)
    except MiniMQError as error:
        raise MinimqSparkError(in_one_line(error)) from None
    return TaskCommit(transaction, frozenset(topics), staged_parts(receipts) if transaction is not None else ())


class Outbox:
    """The rows of one task: gathered by destination, sent in batches. Not thread-safe.

    Args:
        sender: of this process.
        options: how large a body may be, and how batches are compressed.
        transaction: under which batches are staged, if they are.

    Attributes:
        sender: as above.
    """

    def __init__(self, sender: RecordsSender, options: WriteOptions, transaction: Transaction | None) -> None:
        self.sender = sender
        self._options = options.producer
        self._transaction = transaction
        self._gathered: dict[Destination, _Gathered] = {}
        self._size = 0
        #: In the order in which they were sent.
        self._under_way: deque[tuple[Destination, Future[BatchReceipt]]] = deque()
        self._receipts: list[BatchReceipt] = []

    def add(self, destination: Destination, rows: pa.RecordBatch) -> None:
        """Take rows, at least one, and send what is enough for a batch.

        Raises:
            MinimqSparkError: a row makes no message, or one that a broker does not take.
            MiniMQError: a batch that was sent before is not acknowledged, or this one cannot be sent.
        """
        for part in cut(rows, self._options.batch_bytes):
            size = part.nbytes
            gathered = self._gathered.get(destination)
            if gathered is not None and (
                gathered.size + size > self._options.batch_bytes or gathered.count + part.num_rows > MOST_ROWS
            ):
                self._send(destination)
                gathered = None
            if gathered is None:
                gathered = self._gathered[destination] = _Gathered()
            gathered.add(part, size)
            self._size += size
        if self._size > GATHERED_BYTES:
            self._send_all()

    def finish(self) -> list[BatchReceipt]:
        """Send what is left and return the receipts of all batches in their order; raises as `add` does."""
        self._send_all()
        while self._under_way:
            self._take_receipt()
        return self._receipts

    def _send_all(self) -> None:
        while self._gathered:
            self._send(next(iter(self._gathered)))

    def _send(self, destination: Destination) -> None:
        gathered = self._gathered.pop(destination)
        self._size -= gathered.size
        batch = to_batch(gathered.rows(), self._options.max_body_bytes, self._options.batch_compression)
        sent = self.sender.send(*destination, batch, transaction=self._transaction)
        self._under_way.append((destination, sent))
        while self._under_way and self._under_way[0][1].done():  # so that a failure is known before all is sent
            self._take_receipt()

    def _take_receipt(self) -> None:
        """Wait for the oldest batch."""
        destination, sent = self._under_way.popleft()
        try:
            self._receipts.append(sent.result())
        except errors.MessageTooLarge as error:  # its own limit is higher than that of the broker
            raise refused(
                "body",
                f"is too large in a row for topic {destination.topic}: {error.message}; split it, or raise "
                "--max-body-bytes of the brokers",
            ) from None


class _Gathered:
    """Rows for one destination."""

    def __init__(self) -> None:
        self._parts: list[pa.RecordBatch] = []
        self.count = 0
        self.size = 0

    def add(self, part: pa.RecordBatch, size: int) -> None:
        self._parts.append(part)
        self.count += part.num_rows
        self.size += size

    def rows(self) -> pa.RecordBatch:
        if len(self._parts) == 1:
            return self._parts[0]
        return pa.concat_batches(self._parts)
