"""Batch queries: plans which offsets are read, and reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from minimq.connectors import QueueFinder
from pyspark_minimq import reading
from pyspark_minimq.lookup import Lookup
from pyspark_minimq.options import ReadOptions
from pyspark_minimq.planning import plan_ranges
from pyspark_minimq.tag_advice import TagAdvice
from pyspark_minimq.tracebacks import without_traceback

if TYPE_CHECKING:
    import pyarrow as pa


class MinimqBatchReader(DataSourceReader):
    """Plans in one process and reads in others, so it holds nothing but values.

    Args:
        options: of the query.
        schema: the columns to read.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @without_traceback
    def partitions(self) -> list[reading.RangePartition]:
        """Return what the tasks read. Where the topics end is looked up now, and holds for this data frame for good.

        Raises:
            MinimqSparkError: an offset is not stored, or a topic is not readable.
            MiniMQError: a topic does not exist; or a server does not answer, or is away, for as long as is waited.
        """
        options = self._options
        with closing(QueueFinder(options.connection.nameserver, credentials=options.connection.credentials)) as finder:
            lookup = Lookup(finder, options.subscription, options.timeout_s)
            bounds = lookup.with_retries(lambda: lookup.whole(partial=not options.fail_on_data_loss))
            starting = lookup.with_retries(lambda: lookup.offsets_at(options.starting, bounds))
            ending = lookup.with_retries(lambda: lookup.offsets_at(options.ending, bounds))
        ranges = plan_ranges(bounds, starting, ending, fail_on_data_loss=options.fail_on_data_loss)
        TagAdvice(options, self._schema).consider(ranges)
        return reading.cut(ranges, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a partition as Arrow batches.

        Raises:
            MiniMQError: messages are no longer stored or damaged, or their broker is gone.
        """
        return reading.read(self._options, self._schema, partition)
