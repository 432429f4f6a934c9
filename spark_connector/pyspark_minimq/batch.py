"""Batch queries: plans which offsets are read, and reads them."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from minimq import Admin, MessageQueue, Permission, errors
from minimq.receiving.range_reader import ReceivedBatch
from pyspark_minimq.connections import range_reader
from pyspark_minimq.errors import MinimqSourceError
from pyspark_minimq.options import Position, ReadOptions
from pyspark_minimq.planning import Bounds, OffsetRange, Offsets, QueueName, plan_ranges, split_ranges

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """The part of a queue that one task reads."""

    def __init__(self, part: OffsetRange) -> None:
        super().__init__(part)
        self.part = part


class MinimqBatchReader(DataSourceReader):
    """Plans in one process and reads in others, so it holds nothing but values.

    Args:
        options: of the query.
        schema: the columns to read.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[RangePartition]:
        """Return what the tasks read. Where the topics end is looked up now, and holds for this data frame for good.

        Raises:
            MinimqSourceError: an offset is not stored, or a topic is not readable.
            MiniMQError: a topic does not exist, or a server does not answer.
        """
        options = self._options
        with Admin(options.nameserver) as admin:
            bounds = {queue: at for topic in options.topics for queue, at in _bounds(admin, topic).items()}
            starting = _offsets_at(admin, options.starting, bounds)
            ending = _offsets_at(admin, options.ending, bounds)
        ranges = plan_ranges(bounds, starting, ending, fail_on_data_loss=options.fail_on_data_loss)
        parts = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
        return [RangePartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a partition as Arrow batches.

        Raises:
            MiniMQError: messages are no longer stored or damaged, or their broker is gone.
        """
        # Spark reads a partition of its own making when there is none, that is, when there are no messages.
        if isinstance(partition, RangePartition):
            from pyspark_minimq.arrow import ArrowColumns

            part = partition.part
            # Closed when Spark needs no more, which ends the pull at the broker.
            with closing(stored_batches(self._options, part)) as batches:
                yield from ArrowColumns(self._schema).convert(batches, part.start, part.end)


def stored_batches(options: ReadOptions, part: OffsetRange) -> Generator[ReceivedBatch, None, None]:
    """Yield the batches of a range. When messages are gone, that is an error, or the others are read.

    Raises:
        OffsetOutOfRange: messages are no longer stored, and `fail_on_data_loss` is set.
        MiniMQError: a batch is damaged, or its broker is gone.
    """
    reader = range_reader(options.nameserver)
    queue = MessageQueue(*part.queue)
    start, end = part.start, part.end
    while start < end:
        try:
            with closing(reader.read(queue, start, end)) as batches:
                for batch in batches:
                    yield batch
                    start = batch.end_offset
        except errors.OffsetOutOfRange as error:
            if options.fail_on_data_loss:
                remedy = "they were deleted after the query was planned; failOnDataLoss=false reads what is left"
                raise errors.OffsetOutOfRange(f"{error.message}: {remedy}") from None
            log.warning("reading what is left: %s", error.message)
            first, last = reader.bounds(queue)
            left = max(start, first), min(end, last)
            if left == (start, end):  # the broker says that all is there: it would go on like this for ever
                raise
            start, end = left


def _bounds(admin: Admin, topic: str) -> dict[QueueName, Bounds]:
    """Return the bounds of the queues that consumers see."""
    description = admin.describe_topic(topic)
    visible = {settings.broker_name: settings.read_queues for settings in description.settings}
    for settings in description.settings:
        if not settings.permission & Permission.READ:
            raise MinimqSourceError(
                f"topic {topic} is not readable on {settings.broker_name}: allow it with `minimq topic update {topic}`"
            )
    return {
        QueueName(topic, item.queue.broker_name, item.queue.queue_id): Bounds(item.min_offset, item.max_offset)
        for item in description.queues
        if item.queue.queue_id < visible[item.queue.broker_name]
    }


def _offsets_at(admin: Admin, position: Position, bounds: Mapping[QueueName, Bounds]) -> Offsets:
    """Turn a moment into offsets, by asking the brokers."""
    if not isinstance(position, datetime):
        return position
    # Messages that came after the bounds were looked up are not part of the query.
    return {queue: min(admin.offset_at(MessageQueue(*queue), position), at.end) for queue, at in bounds.items()}
