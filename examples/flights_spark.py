"""Starts Spark, and reads and aggregates the messages with it."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flights_data import CarrierFigures
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import avg, count, count_if, isnull

_LOG_CONFIG = Path(__file__).with_name("log4j2.properties")


def check_java() -> None:
    """Exit with a clear message if there is no Java: PySpark would raise `JAVA_GATEWAY_EXITED`."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which(f"{home}/bin/java" if home else "java") is None:
        sys.exit("Spark needs Java 17 or newer: install it, or set JAVA_HOME to the folder that has its bin/java")


@contextmanager
def quiet_spark() -> Iterator[SparkSession]:
    """Run Spark on this machine during the block, without log output."""
    check_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # its workers need the packages of this interpreter
    logging.disable(logging.CRITICAL)  # py4j logs a traceback on Ctrl-C
    builder = (
        SparkSession.builder.master("local[*]")
        .appName("minimq flights")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_LOG_CONFIG.as_uri()}")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
    )
    try:
        session = builder.getOrCreate()
        # Spark's own handler calls Java to cancel its jobs, which fails during another call to Java.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield session
    finally:
        _stop()
        logging.disable(logging.NOTSET)


def _stop() -> None:
    """Stop Spark, even if Ctrl-C interrupted its start, and wait for the end of its Java process."""
    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # which ends the Java process
        gateway.proc.wait(30)
        SparkContext._gateway = SparkContext._jvm = None


def read_topic(spark: SparkSession, nameserver: str, topic: str, schema: str) -> DataFrame:
    source = spark.read.format("minimq").option("nameserver", nameserver).option("topic", topic)
    return source.schema(schema).load()


def figures(messages: DataFrame) -> list[CarrierFigures]:
    """Compute the results from messages with `tag` and `body`. Sorted by carrier."""
    departures = messages.selectExpr(
        "tag AS carrier", "from_json(CAST(body AS STRING), 'dep_time DOUBLE, dep_delay DOUBLE') AS flight"
    )
    rows = departures.groupBy("carrier").agg(
        count("*").alias("flights"),
        avg("flight.dep_delay").alias("mean_delay"),
        count_if(isnull("flight.dep_time")).alias("cancelled"),
    )
    return [
        CarrierFigures(row.carrier, row.flights, row.mean_delay, row.cancelled / row.flights)
        for row in rows.orderBy("carrier").collect()
    ]
