"""Readers: plan which offsets a batch query or a micro-batch reads, and read them."""

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

from pyspark_minimq import reading
from pyspark_minimq.connections import queue_finder, range_reader
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.lookup import Lookup
from pyspark_minimq.options import ReadOptions, StreamOptions
from pyspark_minimq.planning import QueueName, plan_ranges
from pyspark_minimq.stream_planning import BatchLimits, StreamOffset
from pyspark_minimq.tag_advice import TagAdvice
from pyspark_minimq.tracebacks import without_traceback
from pyspark_minimq.worker_process import SentToWorkers, spare_collector

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_minimq.micro_batch_planner import MicroBatchPlanner


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


class MinimqStreamReader(SentToWorkers, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in one process, which lasts as long as the query, and reads in others."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        #: Made when the first plan is: an object that only reads, and is copied to where it does, never has one.
        self._made: MicroBatchPlanner | None = None
        self._tag_advice = TagAdvice(options.read, schema)

    @property
    def _planner(self) -> MicroBatchPlanner:
        from pyspark_minimq.micro_batch_planner import MicroBatchPlanner

        if self._made is None:
            self._made = MicroBatchPlanner(self._options)
        return self._made

    @without_traceback
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins; Spark asks more than once."""
        return self._planner.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return what tells a trigger that keeps to limits from one that does not; all limits are in the options."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    @without_traceback
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return how far the next micro-batch goes, or `start` itself when there is none."""
        limits = BatchLimits() if isinstance(limit, ReadAllAvailable) else self._options.limits
        offset = self._planner.advance(StreamOffset.from_json(start), limits)
        return start if offset is None else offset.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return where the queues end and how many messages that is after the micro-batch, for Spark's progress."""
        return self._planner.report

    @without_traceback
    def prepareForTriggerAvailableNow(self) -> None:
        """Read no further than the queues reach now. Raises `MiniMQError` when that is not known."""
        self._planner.freeze()

    @without_traceback
    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[reading.RangePartition]:
        """Return what the tasks of a micro-batch read, which is for `end` alone to say: see `StreamOffset`."""
        ranges = StreamOffset.from_json(end).ranges()
        self._tag_advice.consider(ranges)
        return reading.cut(ranges, self._options.read, self._planner.finder)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a partition as Arrow batches."""
        # A stream would never reread what a task skips, so the task fails and the stream resumes there after a restart.
        return reading.read(self._options.read, self._schema, partition)

    def stop(self) -> None:
        """End the connections."""
        if self._made is not None:
            self._made.close()
