"""Archive the classes that Spark's JVM loads, which halves the start-up time of further JVMs.

    python scripts/archive-spark-classes.py FILE

The tests use it (tests/conftest.py). The archive is valid for this Java and these jars; other JVMs ignore it. The file
is empty if Java does not support such archives.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

#: The same as in the tests.
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main(archive: Path) -> None:
    """Run a small query; its JVM writes the archive at exit."""
    written = archive.with_suffix(".new")
    written.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} -Xlog:disable -XX:ArchiveClassesAtExit={written}"
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.range(0, 100, 1, 2).selectExpr("string(id) AS body").groupBy("body").count().collect()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    jvm = gateway.proc
    spark.stop()
    jvm.stdin.close()  # which makes the JVM exit
    jvm.wait()
    written.touch()
    written.replace(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
