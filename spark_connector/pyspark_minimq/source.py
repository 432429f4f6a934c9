"""The data source that Spark finds under the name "minimq"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.expected_errors import spark_errors
from pyspark_minimq.worker_process import freeze_gc

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from pyspark_minimq.option_table import Mode
    from pyspark_minimq.write_options import WriteOptions


class MinimqDataSource(DataSource):
    """Reads topics into data frames, and writes data frames into topics.

    docs/spark.md describes options and columns. For each `load()`, `save()` and `start()`, Spark creates an object of
    this class in a separate process, and asks it for a schema and a reader, or for a writer.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "minimq"

    @spark_errors()
    def schema(self) -> StructType:
        """Return the columns of a data frame without `.schema(...)`."""
        from pyspark_minimq.columns import MESSAGE_SCHEMA
        from pyspark_minimq.options import check_options

        check_options(self.options)
        freeze_gc()
        return MESSAGE_SCHEMA

    @spark_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Raises `MinimqSparkError`."""
        from pyspark_minimq.columns import checked_projection
        from pyspark_minimq.options import parse_read_options
        from pyspark_minimq.readers import MinimqBatchReader

        return MinimqBatchReader(parse_read_options(self.options), checked_projection(schema))

    @spark_errors()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query. Raises `MinimqSparkError`."""
        from pyspark_minimq.columns import checked_projection
        from pyspark_minimq.options import parse_stream_options
        from pyspark_minimq.readers import MinimqStreamReader

        return MinimqStreamReader(parse_stream_options(self.options), checked_projection(schema))

    @spark_errors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a data frame. Raises `MinimqSparkError`."""
        from pyspark_minimq.option_table import Mode
        from pyspark_minimq.sink import MinimqBatchWriter, check_topic

        options = self._write_options(schema, Mode.BATCH, overwrite=overwrite)
        check_topic(options)
        return MinimqBatchWriter(options)

    @spark_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream. Raises `MinimqSparkError`."""
        from pyspark_minimq.option_table import Mode
        from pyspark_minimq.sink import MinimqStreamWriter

        return MinimqStreamWriter(self._write_options(schema, Mode.STREAM, overwrite=overwrite))

    def _write_options(self, schema: StructType, mode: Mode, *, overwrite: bool) -> WriteOptions:
        from pyspark_minimq.columns import check_columns
        from pyspark_minimq.write_options import parse_write_options

        freeze_gc()
        if overwrite:
            raise MinimqSparkError(
                "messages are appended to a topic and never replace others: write with mode 'append', a stream with "
                "outputMode 'append', or in foreachBatch"
            )
        options = parse_write_options(self.options, mode)
        check_columns(schema, options.topic)
        return options
