"""Sends Arrow rows: gathers them by destination, sends batches, and sets invalid rows aside."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol

import pyarrow as pa

from minimq.features.tables.destinations import Destination, Destinations
from minimq.features.tables.row_batch import MAX_ROWS, cut, to_batch
from minimq.features.tables.row_columns import checked_rows, rejected
from minimq.sending.producer_core import ProducerCore
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import BatchReceipt
from minimq_common.batch.builder import BatchColumns
from minimq_common.errors import InvalidArgument, MessageTooLarge, MinimqError, SendFailed, TopicNotFound
from minimq_common.model import MessageQueue

#: Most bytes of gathered rows over all destinations; with more, all are sent.
GATHERED_BYTES: Final = 32 << 20


class Send(Protocol):
    """Sends a batch to a topic, and to one of its queues if one is given."""

    def __call__(
        self, topic: str, queue: MessageQueue | None, records: BatchColumns, /, *, may_move: bool
    ) -> Future[BatchReceipt]:
        """See `RecordsSender.send`."""


#: Called with an invalid row, as a record batch, and the reason.
OnRejected = Callable[[pa.RecordBatch, Exception], object]


@dataclass
class _Gathered:
    """Rows for one destination, with their number and size in bytes."""

    parts: list[pa.RecordBatch] = field(default_factory=list)
    count: int = 0
    size: int = 0


class RowWriter:
    """The rows of one call or task. Not thread-safe."""

    def __init__(self, send: Send, options: ProducerOptions) -> None:
        self._send_batch = send
        self._options = options
        self._gathered: dict[Destination, _Gathered] = {}
        self._size = 0
        #: In the order in which they were sent.
        self._under_way: deque[tuple[Destination, int, Future[BatchReceipt]]] = deque()
        self._receipts: list[BatchReceipt] = []

    def add(self, destination: Destination, rows: pa.RecordBatch) -> None:
        """Add rows, at least one, and send full batches."""
        for part in cut(rows, self._options.batch_bytes):
            size = part.nbytes
            gathered = self._gathered.get(destination)
            if gathered is not None and (
                gathered.size + size > self._options.batch_bytes or gathered.count + part.num_rows > MAX_ROWS
            ):
                self._send(destination)
                gathered = None
            if gathered is None:
                gathered = self._gathered[destination] = _Gathered()
            gathered.parts.append(part)
            gathered.count += part.num_rows
            gathered.size += size
            self._size += size
        if self._size > GATHERED_BYTES:
            self._send_all()

    def finish(self) -> list[BatchReceipt]:
        """Send the remaining rows, wait, and return the receipts of all batches in order. Raises as `add` does."""
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
        rows = gathered.parts[0] if len(gathered.parts) == 1 else pa.concat_batches(gathered.parts)
        batch = to_batch(rows, self._options.max_body_bytes, self._options.batch_compression)
        sent = self._send_batch(destination.topic, destination.queue, batch, may_move=destination.may_move)
        self._under_way.append((destination, gathered.count, sent))
        while self._under_way and self._under_way[0][2].done():  # raises a failure before all rows are sent
            self._take_receipt()

    def _take_receipt(self) -> None:
        destination, _, sent = self._under_way.popleft()
        try:
            self._receipts.append(sent.result())
        except MessageTooLarge as error:  # raised by the broker: its limit is lower than that of the producer
            raise rejected(
                "body",
                f"is too large in a row for topic {destination.topic}: {error.message}; split it, or raise "
                "--max-body-bytes of the brokers",
            ) from None
        except SendFailed as error:
            raise self._failed(error) from None

    def _failed(self, first: SendFailed) -> SendFailed:
        in_doubt, not_stored = first.may_be_stored, first.not_stored + sum(it.count for it in self._gathered.values())
        while self._under_way:
            _, count, sent = self._under_way.popleft()
            try:
                self._receipts.append(sent.result())
            except MinimqError as error:
                of_batch = error.may_be_stored if isinstance(error, SendFailed) else 0
                in_doubt, not_stored = in_doubt + of_batch, not_stored + count - of_batch
        stored = sum(receipt.count for receipt in self._receipts)
        return SendFailed(
            f"of the rows read so far, {stored} are stored, {in_doubt} may be stored, {not_stored} are not; the first "
            f"failure: {first.message.splitlines()[0]}",
            first.attempts,
            stored=stored,
            may_be_stored=in_doubt,
            not_stored=not_stored,
        )


def send_rows(
    core: ProducerCore, topic: str | None, rows: object, on_rejected: OnRejected | None
) -> list[BatchReceipt]:
    """Send rows and wait until all are on disk; see `Producer.send_arrow`."""
    outbox = RowWriter(core.send_records, core.options)
    destinations = Destinations(topic, core.queues, core.key_queue)
    batches = checked_rows(rows, has_topic=topic is not None)
    for destination, part in divided(batches, destinations, core.options, on_rejected):
        outbox.add(destination, part)
    return outbox.finish()


def divided(
    batches: Iterable[pa.RecordBatch],
    destinations: Destinations,
    options: ProducerOptions,
    on_rejected: OnRejected | None = None,
) -> Iterator[tuple[Destination, pa.RecordBatch]]:
    """Yield all rows by destination, in order. With `on_rejected`, skip invalid rows, and call it for each."""
    for batch in batches:
        for part in (batch,) if on_rejected is None else _accepted(batch, destinations, options, on_rejected):
            if part.num_rows:
                yield from destinations.split(part)


def _accepted(
    batch: pa.RecordBatch, destinations: Destinations, options: ProducerOptions, on_rejected: OnRejected
) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    try:
        for _, rows in destinations.split(batch):
            for part in cut(rows, options.batch_bytes):
                to_batch(part, options.max_body_bytes)
    except (InvalidArgument, MessageTooLarge, TopicNotFound) as error:
        if batch.num_rows == 1:
            on_rejected(batch, error)
            return
        middle = batch.num_rows // 2
        yield from _accepted(batch[:middle], destinations, options, on_rejected)
        yield from _accepted(batch[middle:], destinations, options, on_rejected)
    else:
        yield batch
