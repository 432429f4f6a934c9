"""Batch queries: plans which offsets are read, and reads them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_minimq import reading
from pyspark_minimq.connections import queue_finder, range_reader
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.lookup import Lookup
from pyspark_minimq.options import ReadOptions
from pyspark_minimq.planning import OffsetRange, QueueName, StoredOffsets, plan_ranges
from pyspark_minimq.pushed_filters import PushedFilters, combine
from pyspark_minimq.tag_advice import TagAdvice
from pyspark_minimq.tracebacks import without_traceback
from pyspark_minimq.worker_process import SentToWorkers, spare_collector

if TYPE_CHECKING:
    import pyarrow as pa


log = logging.getLogger(__name__)

#: Spark's module of the process that hands filters down, which runs only if the session has that switched on.
_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"


def batch_reader(options: ReadOptions, schema: StructType) -> MinimqBatchReader:
    """Return what plans and reads a batch query; Spark refuses one that takes filters unless it hands them down."""
    if not options.pushes_filters:
        return MinimqBatchReader(options, schema)
    if _PUSHING in sys.modules:
        return FilteredBatchReader(options, schema)
    log.info("option pushFilters has no effect here: spark.sql.python.filterPushdown.enabled is false, or no filter")
    return MinimqBatchReader(options, schema)


class MinimqBatchReader(SentToWorkers, DataSourceReader):
    """Plans in one process and reads in others, so it holds nothing but values.

    Args:
        options: of the query.
        schema: the columns to read.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pushed = PushedFilters()

    @without_traceback
    def partitions(self) -> list[reading.RangePartition]:
        """Return what the tasks read. Where the topics end is looked up now, and holds for this data frame for good.

        Raises:
            MinimqSparkError: an offset is not stored, or a topic is not readable.
            MiniMQError: a topic does not exist; or a server does not answer, or is away, for as long as is waited.
        """
        options = self._options
        spare_collector()
        if self._pushed.excludes_all:
            return []
        with closing(queue_finder(options.connection, options.timeout_s)) as finder:
            lookup = Lookup(finder, options.subscription, options.timeout_s)
            bounds = lookup.whole(partial=not options.fail_on_data_loss)
            starting = lookup.with_retries(lambda: lookup.offsets_at(options.starting, bounds))
            ending = lookup.with_retries(lambda: lookup.offsets_at(options.ending, bounds))
            if options.newest:
                self._check_compacted(bounds)
            ranges = plan_ranges(bounds, starting, ending, fail_on_data_loss=options.fail_on_data_loss)
            ranges = lookup.with_retries(lambda: self._within_times(lookup, bounds, ranges))
            parts = reading.cut(ranges, options, finder)
        TagAdvice(options, self._schema).consider(ranges)
        return parts

    def _check_compacted(self, queues: Iterable[QueueName]) -> None:
        """Raise `MinimqSparkError` unless all topics are compacted: elsewhere a key has many queues."""
        reader = range_reader(self._options.connection, self._options.timeout_s)
        others = sorted(topic for topic in {queue.topic for queue in queues} if not reader.is_compacted(topic))
        if others:
            raise MinimqSparkError(f"newest is true, and topic {others[0]} is not compacted: leave the option out")

    def _within_times(
        self, lookup: Lookup, bounds: Mapping[QueueName, StoredOffsets], ranges: list[OffsetRange]
    ) -> list[OffsetRange]:
        """Return of ranges what was stored in the time that pushed filters want."""
        pushed, connection = self._pushed, self._options.connection
        if pushed.first_ms is None and pushed.end_ms is None:
            return ranges
        reader = range_reader(connection, self._options.timeout_s)
        # A compacted batch holds messages of different times, and counts as stored at one of them.
        read = {part.queue: bounds[part.queue] for part in ranges if not reader.is_compacted(part.queue.topic)}
        first = {} if pushed.first_ms is None else lookup.first_stored_at(pushed.first_ms, read)
        end = {} if pushed.end_ms is None else lookup.first_stored_at(pushed.end_ms, read)
        cut = (
            part.cut(max(part.start, first.get(part.queue, part.start)), min(part.end, end.get(part.queue, part.end)))
            for part in ranges
        )
        return [part for part in cut if part.start < part.end]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a partition as Arrow batches.

        Raises:
            MiniMQError: messages are no longer stored or damaged, or their broker is gone.
        """
        return reading.read(self._options, self._schema, partition)


class FilteredBatchReader(MinimqBatchReader):
    """Takes filters on tag and store_timestamp from Spark, and reads less; arguments as above.

    A class of its own: its only difference is a method which Spark does not allow unless filters are handed down.
    """

    @without_traceback
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note what filters spare, and return all of them, so that Spark applies them to what it gets."""
        if self._options.newest:  # what is not wanted may be newer than what is
            return filters
        self._pushed = combine(filters)
        tags = self._pushed.tags
        if tags is not None:
            given = self._options.tags
            self._options = replace(self._options, tags=tags if given is None else given & tags)
            self._pushed = replace(self._pushed, tags=self._options.tags)
        return filters
