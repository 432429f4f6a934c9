"""The work of a writing task: it sends rows as batches, and ends when all of them are acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa

from minimq import MiniMQError, errors
from minimq.arrow import Destinations, Outbox
from minimq.connectors import Transaction, staged_parts
from pyspark_minimq.connections import records_sender
from pyspark_minimq.error_line import in_one_line
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.task_commit import TaskCommit
from pyspark_minimq.worker_process import spare_collector
from pyspark_minimq.write_options import WriteOptions


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
        sender = records_sender(options.connection, options.producer)
        outbox = Outbox(partial(sender.send, transaction=transaction), options.producer)
        destinations = Destinations(options.topic, sender.queues)
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
