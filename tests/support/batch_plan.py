"""A planned batch query of Spark, without Spark."""

from __future__ import annotations

from pyspark.sql.types import StructType

from pyspark_minimq.columns import MESSAGE_SCHEMA
from pyspark_minimq.options import parse_read_options
from pyspark_minimq.readers import MinimqBatchReader


class Plan:
    """The tasks of a query, planned once; `columns` is one column with its type, as in Spark's schemas."""

    def __init__(self, nameserver: str, topic: str, columns: str, **options: str) -> None:
        given = parse_read_options({"nameserver": nameserver, "topic": topic, "readTimeout": "2s", **options})
        self._reader = MinimqBatchReader(given, StructType([MESSAGE_SCHEMA[columns.split(maxsplit=1)[0]]]))
        self._parts = self._reader.partitions()

    def count(self) -> int:
        """Run the tasks one after the other; return the number of their rows."""
        return sum(batch.num_rows for part in self._parts for batch in self._reader.read(part))
