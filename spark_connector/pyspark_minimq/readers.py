"""The readers of batch and streaming queries: plan which offsets to read, and read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from minimq_common.model import MessageQueue
from pyspark_minimq import reading
from pyspark_minimq.connections import queue_finder, range_reader
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.expected_errors import spark_errors
from pyspark_minimq.lookup import Lookup
from pyspark_minimq.options import ReadOptions, StreamOptions
from pyspark_minimq.planning import plan_ranges
from pyspark_minimq.stream_planning import BatchLimits, StreamOffset
from pyspark_minimq.worker_process import WorkerPickle, freeze_gc

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_minimq.micro_batch_planner import MicroBatchPlanner


class MinimqBatchReader(WorkerPickle, DataSourceReader):
    """Plans in one process and reads in others. It is copied between them, so it contains only values."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @spark_errors()
    def partitions(self) -> list[reading.RangePartition]:
        """Return the partitions for the tasks. Looks up the ends of the topics now, once for this data frame."""
        options = self._options
        freeze_gc()
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
            return reading.cut(ranges, options, finder)

    def _check_compacted(self, queues: Iterable[MessageQueue]) -> None:
        reader = range_reader(self._options.connection, self._options.timeout_s)
        others = sorted(topic for topic in {queue.topic for queue in queues} if not reader.is_compacted(topic))
        if others:
            raise MinimqSparkError(f"newest is true, and topic {others[0]} is not compacted: leave the option out")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return reading.read(self._options, self._schema, partition, leaves_out=not self._options.fail_on_data_loss)


class MinimqStreamReader(WorkerPickle, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in one process, which lives as long as the query, and reads in others."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        #: Created for the first plan. The copies that only read never have one.
        self._made: MicroBatchPlanner | None = None

    @property
    def _planner(self) -> MicroBatchPlanner:
        from pyspark_minimq.micro_batch_planner import MicroBatchPlanner

        if self._made is None:
            self._made = MicroBatchPlanner(self._options)
        return self._made

    @spark_errors()
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins. Spark calls this more than once."""
        return self._planner.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit that differs from `ReadAllAvailable` if there are limits; their values are in the options."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    @spark_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch, or `start` if there is nothing to read."""
        limits = BatchLimits() if isinstance(limit, ReadAllAvailable) else self._options.limits
        offset = self._planner.advance(StreamOffset.from_json(start), limits)
        return start if offset is None else offset.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the queues and the number of messages after the micro-batch, for Spark's progress."""
        return self._planner.report

    @spark_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        """Read no further than to the current ends of the queues."""
        self._planner.freeze()

    @spark_errors()
    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[reading.RangePartition]:
        """Return the partitions of a micro-batch. `end` contains its start, too: see `StreamOffset`."""
        return reading.cut(StreamOffset.from_json(end).ranges(), self._options.read, self._planner.finder)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Not `leaves_out`: a stream never returns to skipped messages. So the task fails, and a restart resumes there.
        return reading.read(self._options.read, self._schema, partition)

    def stop(self) -> None:
        if self._made is not None:
            self._made.close()
