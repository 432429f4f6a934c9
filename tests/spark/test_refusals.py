"""What the Spark source does not do is refused with a line that says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def write(spark: SparkSession, _: Path) -> None:
    spark.range(1).write.format("minimq").mode("append").option("topic", "orders").save()


def write_stream(spark: SparkSession, folder: Path) -> None:
    stream = spark.readStream.format("rate").load().writeStream.format("minimq").option("topic", "orders")
    stream.option("checkpointLocation", str(folder)).start().processAllAvailable()


@pytest.mark.parametrize("do", [write, write_stream])
def test_writing_is_refused_in_one_line(
    spark: SparkSession, tmp_path: Path, do: Callable[[SparkSession, Path], None]
) -> None:
    with pytest.raises(PySparkException) as caught:
        do(spark, tmp_path)
    [line] = [line for line in str(caught.value).splitlines() if "MinimqSourceError: " in line]
    assert "minimq can be read, not written: " in line
    assert "NOT_IMPLEMENTED" not in str(caught.value)
