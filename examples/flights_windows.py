"""Departures by airport and day: a streaming aggregation with late data and a restart.

    pip install '.[spark,demo]'   # Spark, pandas and the flights; and Java
    python examples/flights_windows.py

The flights of two weeks go through one queue per airport. Some are sent a day late, which the watermark of two days
allows; some are sent long after their day, and are not counted. The query is stopped in the middle and resumes from its
checkpoint. At the end its counts are compared with the data.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from flights_data import as_messages, departures
from flights_spark import quiet_spark
from flights_stage import arguments
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count, from_json, window
from pyspark.sql.streaming.query import StreamingQuery

from minimq import Admin, LocalCluster, MessageQueue, Producer

TOPIC = "departures"
AIRPORTS = ("EWR", "JFK", "LGA")
BROKER = "broker-a"
WATERMARK = "2 days"
#: Flights per micro-batch: about three days.
PER_TRIGGER = 2500

#: Flights by day and airport.
Counts = dict[tuple[str, str], int]


@dataclass
class Table:
    """Stands for a table in a database: the latest count for each day and airport."""

    counts: Counts = field(default_factory=dict)
    updates: int = 0
    changed: threading.Event = field(default_factory=threading.Event)

    def update(self, changed: DataFrame, _: int) -> None:
        """Upsert the rows of a micro-batch. Idempotent: after a restart, a micro-batch may come twice."""
        for row in changed.collect():
            self.counts[row.day, row.origin] = row.flights
            self.updates += 1
        self.changed.set()


@dataclass(frozen=True)
class Flights:
    """Two weeks of flights in the order of sending.

    Attributes:
        before: sent before the query is stopped.
        after: sent after that, including those that are a day late, or too late.
        expected: the expected counts.
    """

    before: pd.DataFrame
    after: pd.DataFrame
    expected: Counts


def two_weeks() -> Flights:
    """Return the flights from 1 to 14 January 2013; the query sees one week before it is stopped."""
    table = departures()
    times = pd.to_datetime(table["time_hour"])
    table = table[times < pd.Timestamp("2013-01-15", tz="UTC")]
    times = times[table.index]
    rank = table.groupby("origin").cumcount()
    week = times < pd.Timestamp("2013-01-08", tz="UTC")
    late = (times >= pd.Timestamp("2013-01-07", tz="UTC")) & week & (rank % 10 == 0)
    too_late = (times < pd.Timestamp("2013-01-03", tz="UTC")) & (rank % 20 == 0)
    counted = table[~too_late]
    counts = counted.groupby([counted["time_hour"].str[:10], "origin"]).size()
    return Flights(
        before=table[week & ~late & ~too_late],
        after=pd.concat([table[late], table[too_late], table[~week]]),
        expected={(str(day), str(origin)): int(flights) for (day, origin), flights in counts.items()},
    )


def send(nameserver: str, table: pd.DataFrame) -> None:
    """Send flights, each to the queue of its airport."""
    with Producer(nameserver) as producer:
        for number, airport in enumerate(AIRPORTS):
            flights = as_messages(TOPIC, table[table["origin"] == airport])
            producer.send_many(flights, queue=MessageQueue(TOPIC, BROKER, number))


def flights_by_day(messages: DataFrame) -> DataFrame:
    """Count flights by airport and day; a day is closed two days after its end."""
    flights = messages.select(
        from_json(messages.body.cast("string"), "origin STRING, time_hour TIMESTAMP").alias("flight")
    ).select("flight.*")
    days = flights.withWatermark("time_hour", WATERMARK).groupBy(window("time_hour", "1 day"), "origin")
    return days.agg(count("*").alias("flights")).selectExpr(
        "date_format(window.start, 'yyyy-MM-dd') AS day", "origin", "flights"
    )


def start(spark: SparkSession, nameserver: str, checkpoint: Path, table: Table) -> StreamingQuery:
    """Start the query, or resume it from its checkpoint, until it has read all present messages."""
    messages = (
        spark.readStream.format("minimq")
        .option("nameserver", nameserver)
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", PER_TRIGGER)
        .option("consumerGroup", "flights-by-day")  # `minimq group describe flights-by-day` shows its progress
        .schema("body binary")
        .load()
    )
    writer = flights_by_day(messages).writeStream.outputMode("update").foreachBatch(table.update)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def run(spark: SparkSession, nameserver: str, checkpoint: Path, flights: Flights) -> Table:
    """Send the flights, and return the table of counts."""
    table = Table()
    send(nameserver, flights.before)
    query = start(spark, nameserver, checkpoint, table)
    while query.isActive and not table.changed.wait(0.1):
        pass  # stop after one of three micro-batches
    query.stop()
    start(spark, nameserver, checkpoint, table).awaitTermination()

    send(nameserver, flights.after)
    start(spark, nameserver, checkpoint, table).awaitTermination()
    return table


def differences(counted: Counts, expected: Counts) -> Iterable[str]:
    for key in sorted(counted.keys() | expected.keys()):
        if counted.get(key) != expected.get(key):
            yield f"{key}: counted {counted.get(key)} flights, expected {expected.get(key)}"


def main() -> None:
    arguments(__doc__).parse_args()
    flights = two_weeks()
    with LocalCluster(brokers=1) as cluster, quiet_spark() as spark, tempfile.TemporaryDirectory() as folder:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic(TOPIC, queues=len(AIRPORTS))
        table = run(spark, cluster.nameserver, Path(folder), flights)
    for (day, airport), number in sorted(table.counts.items()):
        print(day, airport, number)
    wrong = list(differences(table.counts, flights.expected))
    print("\n".join(wrong) or f"all {sum(table.counts.values())} flights were counted as expected")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
