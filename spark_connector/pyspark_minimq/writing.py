"""A writing task: sends the rows of a partition as batches, and waits until all are acknowledged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Final

import pyarrow as pa

from minimq import MinimqError, errors
from minimq.features.tables.destinations import Destination, Destinations
from minimq.features.tables.row_writer import RowWriter, divided
from minimq.features.transactions.decisions import Transaction, staged_parts
from minimq.kafka import text_of
from pyspark_minimq.connections import records_sender
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.expected_errors import in_one_line
from pyspark_minimq.task_commit import TaskCommit
from pyspark_minimq.worker_process import freeze_gc
from pyspark_minimq.write_options import WriteOptions

#: Characters of a value, and of the reason, in the properties of a dead letter.
_MAX_SHOWN: Final = 1000


def write(options: WriteOptions, batches: Iterator[pa.RecordBatch], transaction: Transaction | None) -> TaskCommit:
    """Write the rows of a partition, and wait until all are acknowledged."""
    topics: set[str] = set()
    try:
        sender = records_sender(options.connection, options.producer)
        outbox = RowWriter(partial(sender.send, transaction=transaction), options.producer)
        destinations = Destinations(options.topic, sender.queues, sender.key_queue)
        rejections = (
            None if options.dead_letter_topic is None and not options.drops_rejected else RejectedRows(options, outbox)
        )
        freeze_gc()
        try:
            for destination, rows in divided(batches, destinations, options.producer, rejections):
                topics.add(destination.topic)
                outbox.add(destination, rows)
            if rejections is not None and rejections.count and options.dead_letter_topic is not None:
                topics.add(options.dead_letter_topic)
            receipts = outbox.finish()
        except errors.TransactionEnded:
            for _ in batches:  # consumes the input, so that Spark can reuse this process
                pass
            return TaskCommit(transaction, frozenset(topics), (), decided=True)
    except MinimqError as error:
        raise MinimqSparkError(in_one_line(error)) from None
    return TaskCommit(
        transaction,
        frozenset(topics),
        staged_parts(receipts) if transaction is not None else (),
        rejected=rejections.count if rejections is not None else 0,
        first_rejection=rejections.first if rejections is not None else "",
    )


class RejectedRows:
    """Counts the rows of a task that are no valid messages, and sends them to the dead-letter topic if there is one."""

    def __init__(self, options: WriteOptions, outbox: RowWriter) -> None:
        self._options = options
        self._outbox = outbox
        self.count = 0
        self.first = ""

    def __call__(self, row: pa.RecordBatch, reason: Exception) -> None:
        text = str(reason).splitlines()[0]
        self.first = self.first or text
        self.count += 1
        if self._options.dead_letter_topic is not None:
            letter = dead_letter(row, text, self._options.producer.max_body_bytes)
            self._outbox.add(Destination(self._options.dead_letter_topic, None), letter)


def dead_letter(row: pa.RecordBatch, reason: str, max_body_bytes: int) -> pa.RecordBatch:
    """Return the dead letter of a rejected row: its body, cut if necessary, and reason and columns as properties."""
    values = {name.lower(): column[0] for name, column in zip(row.schema.names, row.columns, strict=True)}
    body = _bytes(values.pop("body", None) or values.pop("value", None))
    properties = {"rejected": reason[:_MAX_SHOWN], "body_bytes": str(len(body))}
    properties |= {name: text_of(_bytes(value))[:_MAX_SHOWN] for name, value in values.items() if value.is_valid}
    return pa.RecordBatch.from_pydict(
        {
            "body": pa.array([body[:max_body_bytes]], pa.binary()),
            "properties": pa.array([list(properties.items())], pa.map_(pa.string(), pa.string())),
        }
    )


def _bytes(value: pa.Scalar | None) -> bytes:
    if value is None or not value.is_valid:
        return b""
    if hasattr(value, "as_buffer"):
        return bytes(value.as_buffer())
    return json.dumps(_readable(value)).encode()


def _readable(value: pa.Scalar) -> object:
    if not value.is_valid:
        return None
    if isinstance(value, pa.MapScalar | pa.ListScalar):
        return [_readable(each) for each in value.values]
    if isinstance(value, pa.StructScalar):
        return [_readable(each) for each in value.values()]
    return bytes(value.as_buffer()).decode(errors="replace") if hasattr(value, "as_buffer") else value.as_py()
