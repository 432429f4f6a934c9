"""Rows on their way: gathered by destination, sent in batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

import pyarrow as pa

from minimq.sending.arrow.destinations import Destination
from minimq.sending.arrow.row_batch import MOST_ROWS, cut, to_batch
from minimq.sending.arrow.text_columns import refused
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import BatchReceipt
from minimq_common.batch.builder import BatchColumns
from minimq_common.errors import MessageTooLarge
from minimq_common.model import MessageQueue

#: Bytes of rows that wait, over all destinations, until there are enough for a batch.
GATHERED_BYTES: Final = 32 << 20

#: Sends a batch to a topic, and to one of its queues if one is given.
Send = Callable[[str, MessageQueue | None, BatchColumns], Future[BatchReceipt]]


class Outbox:
    """The rows of one call or task. Not thread-safe."""

    def __init__(self, send: Send, options: ProducerOptions) -> None:
        self._send_batch = send
        self._options = options
        self._gathered: dict[Destination, _Gathered] = {}
        self._size = 0
        #: In the order in which they were sent.
        self._under_way: deque[tuple[Destination, Future[BatchReceipt]]] = deque()
        self._receipts: list[BatchReceipt] = []

    def add(self, destination: Destination, rows: pa.RecordBatch) -> None:
        """Take rows, at least one, and send what is enough for a batch."""
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
        self._under_way.append((destination, self._send_batch(*destination, batch)))
        while self._under_way and self._under_way[0][1].done():  # so that a failure is known before all is sent
            self._take_receipt()

    def _take_receipt(self) -> None:
        destination, sent = self._under_way.popleft()
        try:
            self._receipts.append(sent.result())
        except MessageTooLarge as error:  # its own limit is higher than that of the broker
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
