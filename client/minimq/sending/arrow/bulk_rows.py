"""One call of `send_arrow`."""

from __future__ import annotations

from minimq.sending.arrow.destinations import Destinations, Queues
from minimq.sending.arrow.outbox import Outbox, Send
from minimq.sending.arrow.row_schema import checked_rows
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import BatchReceipt


def send_rows(
    topic: str | None, rows: object, queues: Queues, send: Send, options: ProducerOptions
) -> list[BatchReceipt]:
    """Send rows and wait until all are on disk; see `Producer.send_arrow`.

    Args:
        topic: of all rows; None when a column says it.
        rows: see `checked_rows`.
        queues: looks up the queues of a topic.
        send: sends a batch.
        options: how large a body and a batch may be, and how batches are compressed.
    """
    outbox = Outbox(send, options)
    destinations = Destinations(topic, queues)
    for batch in checked_rows(rows, has_topic=topic is not None):
        for destination, part in destinations.split(batch):
            outbox.add(destination, part)
    return outbox.finish()
