"""Write the classes that a JVM of Spark loads into an archive, with which the next ones start in half the time.

    python scripts/archive-spark-classes.py FILE

The tests use it (tests/conftest.py). It holds for this Java and these jars; a JVM that has others passes it over. The
file is empty where Java writes no such archive.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

#: As in the tests.
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main(archive: Path) -> None:
    """Run a small query, and have its JVM write the archive at its end."""
    written = archive.with_suffix(".new")
    written.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} -Xlog:disable -XX:ArchiveClassesAtExit={written}"
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.range(0, 100, 1, 2).selectExpr("string(id) AS body").groupBy("body").count().collect()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    jvm = gateway.proc
    spark.stop()
    jvm.stdin.close()  # it ends, and writes
    jvm.wait()
    written.touch()
    written.replace(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
