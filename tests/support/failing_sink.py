"""A sink that fails where a test wants it to: once for each file that it finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_minimq.option_table import Mode
from pyspark_minimq.sink import MinimqBatchWriter, MinimqStreamWriter, MinimqWriter
from pyspark_minimq.source import MinimqDataSource
from pyspark_minimq.write_options import WriteOptions, parse_write_options

if TYPE_CHECKING:
    import pyarrow as pa

#: Where it can fail: in a task when all its rows are acknowledged, and in the driver around the commit.
AFTER_WRITE, BEFORE_COMMIT, AFTER_COMMIT = "after-write", "before-commit", "after-commit"


class Faults:
    """The faults that are left, as files of a folder, so that all processes know them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def plan(self, where: str) -> None:
        (self._folder / where).touch()

    def strike(self, where: str) -> None:
        """Fail if that is planned, which it is not any more then."""
        try:
            (self._folder / where).unlink()
        except FileNotFoundError:
            return
        raise RuntimeError(f"a planned fault {where}")


class FailingDataSource(MinimqDataSource):
    """The data source with an option `faults`: a folder."""

    @classmethod
    def name(cls) -> str:
        return "minimq_failing"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return FailingBatchWriter(*self._given(Mode.BATCH))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return FailingStreamWriter(*self._given(Mode.STREAM))

    def _given(self, mode: Mode) -> tuple[WriteOptions, Faults]:
        options = {name: value for name, value in self.options.items() if name != "faults"}
        return parse_write_options(options, mode), Faults(Path(self.options["faults"]))


class FailingWriter(MinimqWriter):
    """The base of failing writers; Spark is given one of the classes below."""

    def __init__(self, options: WriteOptions, faults: Faults) -> None:
        super().__init__(options)
        self._faults = faults

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        written = super().write(iterator)
        self._faults.strike(AFTER_WRITE)
        return written

    def end(self, messages: Sequence[WriterCommitMessage | None], number: int) -> None:
        self._faults.strike(BEFORE_COMMIT)
        super().end(messages, number)
        self._faults.strike(AFTER_COMMIT)


class FailingBatchWriter(FailingWriter, MinimqBatchWriter):
    pass


class FailingStreamWriter(FailingWriter, MinimqStreamWriter):
    pass
