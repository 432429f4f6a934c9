"""A reading task: reads a part of one queue, or several queues with few messages."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from minimq import errors
from minimq.connection.master_calls import with_retries
from minimq.consuming.queue_finder import QueueFinder
from minimq.consuming.range_reader import RangeReader
from minimq.consuming.received import ReceivedBatch
from minimq_common.model import TopicRoute
from pyspark_minimq.columns import arrow_schema, with_table_columns
from pyspark_minimq.connections import queue_finder, range_reader
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.expected_errors import spark_errors
from pyspark_minimq.options import ReadOptions
from pyspark_minimq.planning import OffsetRange, group_ranges, place_of, split_ranges
from pyspark_minimq.worker_process import freeze_gc

if TYPE_CHECKING:
    import pyarrow as pa

    from minimq.features.tables.columns import ArrowColumns

log = logging.getLogger(__name__)

#: Brokers filter by at most this many tags; for more, the task fetches all messages and filters them.
MAX_TAGS = 1000
#: No limit: the queue is not split.
MAX_OFFSETS = 1 << 63


class RangePartition(InputPartition):
    """The ranges that one task reads, and the routes of their topics."""

    def __init__(self, ranges: Sequence[OffsetRange], routes: Sequence[TopicRoute] = ()) -> None:
        super().__init__(ranges)
        self.ranges = ranges
        self.routes = routes


def cut(ranges: Iterable[OffsetRange], options: ReadOptions, finder: QueueFinder) -> list[RangePartition]:
    """Distribute ranges over partitions, with the routes that `finder` already knows."""
    fewest, most = options.min_partitions, options.max_records_per_partition
    if options.newest:  # all messages of a key are in one queue, and must be in one partition
        fewest, most = None, MAX_OFFSETS
    parts = split_ranges(ranges, fewest, most)
    cores = len(os.sched_getaffinity(0))
    groups = group_ranges(parts, options.min_records_per_partition, fewest, most, cores)
    return [
        RangePartition(group, finder.known_routes(sorted({part.queue.topic for part in group}))) for group in groups
    ]


def read(
    options: ReadOptions, schema: StructType, partition: InputPartition, *, leaves_out: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a partition as Arrow batches; with `leaves_out`, skip brokers that are offline."""
    with spark_errors():
        yield from _read(options, schema, partition, leaves_out=leaves_out)


def _read(
    options: ReadOptions, schema: StructType, partition: InputPartition, *, leaves_out: bool
) -> Iterator[pa.RecordBatch]:
    # Without messages there are no partitions, and Spark then reads one of its own making.
    if isinstance(partition, RangePartition):
        from minimq.features.tables.columns import ArrowColumns

        columns = ArrowColumns(arrow_schema(with_table_columns(schema) if options.newest else schema), options.tags)
        reader = range_reader(options.connection, options.timeout_s)
        reader.learn(partition.routes)
        freeze_gc()
        silent = set[str]() if leaves_out else None  # brokers that did not answer within the read timeout
        if options.newest:
            for part in partition.ranges:
                yield from _newest(_pieces(reader, options, columns, part, silent), schema)
            return
        pieces = (piece for part in partition.ranges for piece in _pieces(reader, options, columns, part, silent))
        yield from columns.gathered(pieces)


def _newest(pieces: Iterable[pa.RecordBatch], schema: StructType) -> Iterator[pa.RecordBatch]:
    from minimq.features.tables.plan import newest_of_each_key

    table = newest_of_each_key(pieces, arrow_schema(with_table_columns(schema)))
    chosen = table.select([field.name.lower() for field in schema]).rename_columns(schema.names)
    yield from chosen.cast(arrow_schema(schema)).to_batches()


def _pieces(
    reader: RangeReader, options: ReadOptions, columns: ArrowColumns, part: OffsetRange, silent: set[str] | None
) -> Iterator[pa.RecordBatch]:
    # With a set `silent`, skips the brokers in it, and adds a broker that does not answer.
    broker = part.queue.broker_name
    if silent is not None and broker in silent:
        _warn(part, "left out", f"{broker} does not answer")
        return
    try:
        if columns.are_known and not reader.is_compacted(part.queue.topic):  # no message has to be fetched
            start, end = _stored(reader, part, options)
            yield from columns.count(part.queue, start, end)
            return
        # Closing the batches when Spark needs no more ends the pull at the broker.
        with closing(_stored_batches(reader, part, options)) as batches:
            yield from columns.pieces(batches, part.start, part.end)
    except (errors.TopicNotFound, errors.QueueNotFound) as error:
        if options.fail_on_data_loss:
            raise MinimqSparkError(f"{error.message}; failOnDataLoss=false reads what is left") from None
        if not isinstance(error, errors.TopicRecreated) and not _is_deleted(part, options):
            raise
        _warn(part, "lost", error.message)
    except errors.TransportError as error:
        if silent is None or not error.retriable:
            raise
        silent.add(broker)
        _warn(part, "left out", error.message)


def _warn(part: OffsetRange, what: str, reason: str) -> None:
    log.warning("offsets %d to %d of queue %s are %s: %s", part.start, part.end - 1, part.queue, what, reason)


def _is_deleted(part: OffsetRange, options: ReadOptions) -> bool:
    with closing(queue_finder(options.connection, options.timeout_s)) as finder:
        found = finder.find((), [place_of(part.queue)])
    about = found.queues.get(part.queue)
    return place_of(part.queue) not in found.failures and (about is None or about.topic_id != part.topic_id)


def _stored_batches(
    reader: RangeReader, part: OffsetRange, options: ReadOptions
) -> Generator[ReceivedBatch, None, None]:
    queue = part.queue
    tags = options.tags if options.tags is not None and len(options.tags) <= MAX_TAGS else ()
    start, end, term, topic_id = part.start, part.end, part.term, part.topic_id
    while start < end:
        try:
            with closing(reader.read(queue, start, end, tags, term, topic_id)) as batches:
                for batch in batches:
                    yield batch
                    start = batch.end_offset
            return
        except errors.OffsetOutOfRange as error:
            if options.fail_on_data_loss:
                raise _lost(error.message) from None
            log.warning("reading what is left: %s", error.message)
            first, last = _bounds(reader, part, options)
            left = max(start, first), min(end, last)
            if left == (start, end) and not term:
                raise  # the broker now reports that all messages are there, so a retry would loop forever
            start, end = left
            term = 0  # accepts what a later master has at these offsets


def _stored(reader: RangeReader, part: OffsetRange, options: ReadOptions) -> tuple[int, int]:
    queue, topic_id = part.queue, part.topic_id
    probe = reader.read(queue, part.start, part.start + 1, topic_id=topic_id)
    with suppress(errors.OffsetOutOfRange), closing(probe) as batches:
        next(batches)  # waits for a broker that is temporarily offline
    first, end = _bounds(reader, part, options)
    if options.fail_on_data_loss and not first <= part.start <= part.end <= end:
        stored = f"it holds {first} to {end - 1}" if first < end else "the queue is empty"
        lacking = part.start if part.start < first else max(part.start, end)
        raise _lost(f"offsets {lacking} to {part.end - 1} of queue {queue} cannot be read: {stored}")
    return max(part.start, first), min(part.end, end)


def _bounds(reader: RangeReader, part: OffsetRange, options: ReadOptions) -> tuple[int, int]:
    queue, topic_id = part.queue, part.topic_id
    return with_retries(lambda _: reader.bounds(queue, topic_id), options.timeout_s, option="readTimeout")


def _lost(what: str) -> MinimqSparkError:
    return MinimqSparkError(
        f"{what}: they were deleted after the query was planned; failOnDataLoss=false reads what is left"
    )
