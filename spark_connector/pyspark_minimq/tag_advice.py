"""Advises users to set the option `tag`: Spark does not push filters down, so a source cannot filter by the column."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import closing
from typing import Final

from pyspark.sql.types import StringType, StructField, StructType

from minimq import MessageQueue, MinimqError
from minimq.consuming.range_reader import RangeOptions, RangeReader
from pyspark_minimq.columns import arrow_schema
from pyspark_minimq.options import ReadOptions
from pyspark_minimq.planning import OffsetRange

log = logging.getLogger(__name__)

#: Timeout for reading messages to find out whether the advice helps.
_TIMEOUT_S: Final = 2.0

_TAG: Final = StructType([StructField("tag", StringType())])


class TagAdvice:
    """Advises one query at most once, in the process that plans it. Not thread-safe."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._may_help = options.tags is None and "tag" in {name.lower() for name in schema.fieldNames()}

    def consider(self, ranges: Collection[OffsetRange]) -> None:
        """Log the advice if it may help a query that reads these ranges."""
        count = sum(map(len, ranges))
        if not self._may_help or count <= self._options.max_records_per_partition:
            return
        self._may_help = False
        longest = max(ranges, key=len)
        if self._has_different_tags(longest):
            log.warning(
                "reading %d messages with different tags, since the option tag is not set: if the query filters by the "
                "column tag, set the option, too, because Spark applies filters only after reading",
                count,
            )

    def _has_different_tags(self, part: OffsetRange) -> bool:
        import pyarrow.compute as pc

        from minimq.features.tables.columns import ArrowColumns

        columns = ArrowColumns(arrow_schema(_TAG))
        tags: set[str | None] = set()
        connection = self._options.connection
        given = RangeOptions(max_wait_s=_TIMEOUT_S, credentials=connection.credentials)
        with closing(RangeReader(connection.nameserver, given)) as reader:
            try:
                for offset in (part.start, part.end - 1):
                    with closing(reader.read(MessageQueue(*part.queue), offset, offset + 1)) as batches:
                        for rows in columns.convert(batches, part.start, part.end):
                            tags.update(pc.unique(rows.column(0)).to_pylist())
            except MinimqError:
                return False  # the tasks will report the error
        return len(tags) > 1
