"""Batch queries: plans which offsets are read, and reads them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_minimq import reading
from pyspark_minimq.connections import queue_finder, range_reader
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.lookup import Lookup
from pyspark_minimq.options import ReadOptions
from pyspark_minimq.planning import QueueName, plan_ranges
from pyspark_minimq.tag_advice import TagAdvice
from pyspark_minimq.tracebacks import without_traceback
from pyspark_minimq.worker_process import SentToWorkers, spare_collector

if TYPE_CHECKING:
    import pyarrow as pa


log = logging.getLogger(__name__)


class MinimqBatchReader(SentToWorkers, DataSourceReader):
    """Plans in one process and reads in others, so it holds nothing but values."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @without_traceback
    def partitions(self) -> list[reading.RangePartition]:
        """Return what the tasks read. Where the topics end is looked up now, and holds for this data frame for good."""
        options = self._options
        spare_collector()
        with closing(queue_finder(options.connection, options.timeout_s)) as finder:
            lookup = Lookup(finder, options.subscription, options.timeout_s)
            strict = options.fail_on_data_loss
            bounds = lookup.whole(partial=not strict)
            starting, ending = (
                lookup.with_retries(partial(lookup.offsets_at, position, bounds, fail_on_data_loss=strict))
                for position in (options.starting, options.ending)
            )
            if options.newest:
                self._check_compacted(bounds)
            ranges = plan_ranges(bounds, starting, ending, fail_on_data_loss=strict)
            parts = reading.cut(ranges, options, finder)
        TagAdvice(options, self._schema).consider(ranges)
        return parts

    def _check_compacted(self, queues: Iterable[QueueName]) -> None:
        reader = range_reader(self._options.connection, self._options.timeout_s)
        others = sorted(topic for topic in {queue.topic for queue in queues} if not reader.is_compacted(topic))
        if others:
            raise MinimqSparkError(f"newest is true, and topic {others[0]} is not compacted: leave the option out")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a partition as Arrow batches."""
        return reading.read(self._options, self._schema, partition, leaves_out=not self._options.fail_on_data_loss)
