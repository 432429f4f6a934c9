"""Sending the rows of a table, and setting aside those that make no message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from minimq.sending.arrow.destinations import Destination, Destinations, KeyQueue, Queues
from minimq.sending.arrow.outbox import Outbox, Send
from minimq.sending.arrow.row_batch import cut, to_batch
from minimq.sending.arrow.row_schema import checked_rows
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import BatchReceipt
from minimq_common.errors import InvalidArgument, MessageTooLarge, TopicNotFound

#: Called with a record batch of one row and the reason why it makes no message.
OnRefused = Callable[[pa.RecordBatch, Exception], object]


def send_rows(
    topic: str | None,
    rows: object,
    queues: Queues,
    key_queue: KeyQueue,
    send: Send,
    options: ProducerOptions,
    on_refused: OnRefused | None = None,
) -> list[BatchReceipt]:
    """Send rows and wait until all are on disk; see `Producer.send_arrow`."""
    outbox = Outbox(send, options)
    destinations = Destinations(topic, queues, key_queue)
    for destination, part in divided(
        checked_rows(rows, has_topic=topic is not None), destinations, options, on_refused
    ):
        outbox.add(destination, part)
    return outbox.finish()


def divided(
    batches: Iterable[pa.RecordBatch],
    destinations: Destinations,
    options: ProducerOptions,
    on_refused: OnRefused | None = None,
) -> Iterator[tuple[Destination, pa.RecordBatch]]:
    """Yield all rows by destination, in their order, but those that make no message, if `on_refused` takes them."""
    for batch in batches:
        for part in (batch,) if on_refused is None else _accepted(batch, destinations, options, on_refused):
            if part.num_rows:
                yield from destinations.split(part)


def _accepted(
    batch: pa.RecordBatch, destinations: Destinations, options: ProducerOptions, on_refused: OnRefused
) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    try:
        for _, rows in destinations.split(batch):
            for part in cut(rows, options.batch_bytes):
                to_batch(part, options.max_body_bytes)
    except (InvalidArgument, MessageTooLarge, TopicNotFound) as error:
        if batch.num_rows == 1:
            on_refused(batch, error)
            return
        middle = batch.num_rows // 2
        yield from _accepted(batch[:middle], destinations, options, on_refused)
        yield from _accepted(batch[middle:], destinations, options, on_refused)
    else:
        yield batch
