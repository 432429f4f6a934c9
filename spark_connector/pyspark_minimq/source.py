"""What Spark finds under the name "minimq"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from typing import NoReturn

    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType


class MinimqDataSource(DataSource):
    """Reads topics into data frames.

    The options and the columns are described in docs/spark.md. Spark makes an object of this class in a process of its
    own for each `load()`, and asks it for a schema and for a reader.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "minimq"

    def schema(self) -> StructType:
        """Return the columns of a data frame for which `.schema(...)` chose none.

        Raises:
            MinimqSourceError: an option is wrong; told here because it is the first thing that Spark asks for.
        """
        from pyspark_minimq.options import check_options
        from pyspark_minimq.schema import MESSAGE_SCHEMA

        check_options(self.options)
        return MESSAGE_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what plans and reads a batch query.

        Args:
            schema: the columns to read, as `schema` returned them or as the user chose them.

        Raises:
            MinimqSourceError: an option or a column is wrong.
        """
        from pyspark_minimq.batch import MinimqBatchReader
        from pyspark_minimq.options import parse_read_options
        from pyspark_minimq.schema import checked_projection

        return MinimqBatchReader(parse_read_options(self.options), checked_projection(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what plans and reads a streaming query; argument and errors as for `reader`."""
        from pyspark_minimq.options import parse_stream_options
        from pyspark_minimq.schema import checked_projection
        from pyspark_minimq.stream import MinimqStreamReader

        return MinimqStreamReader(parse_stream_options(self.options), checked_projection(schema))

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refuse `write`."""
        _refuse("send from Python with minimq.Producer, for example in df.foreachPartition")

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refuse `writeStream`."""
        _refuse("send from Python with minimq.Producer, for example in foreachBatch")


def _refuse(remedy: str) -> NoReturn:
    from pyspark_minimq.errors import MinimqSourceError

    raise MinimqSourceError(f"minimq can be read, not written: {remedy}")
