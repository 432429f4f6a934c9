"""From topic to topic: a streaming query selects late flights, adds the carrier's name, and sends each exactly once.

    pip install '.[spark,demo]'   # Spark, pandas and the flights; and Java
    python examples/flights_alerts.py

Flights are read from one topic, alerts written to another. The query is stopped in the middle and resumes from its
checkpoint: no alert is lost or duplicated.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from flights_data import names_of_carriers
from flights_spark import read_topic
from flights_stage import arguments, cluster_and_spark, january, send_flights
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, create_map, from_json, lit, struct, to_json
from pyspark.sql.streaming.query import StreamingQuery

FLIGHTS = "flights"
ALERTS = "alerts"
LATE_MIN = 60
#: Flights per micro-batch: about five days.
PER_TRIGGER = 4500


def alerts(messages: DataFrame) -> DataFrame:
    """Make messages about flights that left at least an hour late, with the columns of the sink."""
    fields = from_json(messages.body.cast("string"), "flight INT, origin STRING, dest STRING, dep_delay DOUBLE")
    flights = messages.select("tag", "keys", fields.alias("of")).select("tag", "keys", "of.*")
    spark = messages.sparkSession
    carriers = spark.createDataFrame(list(names_of_carriers().items()), "tag STRING, carrier STRING")
    late = flights.where(col("dep_delay") >= LATE_MIN).join(carriers, "tag")
    return late.select(
        to_json(struct("carrier", "flight", "origin", "dest", "dep_delay")).alias("body"),
        "tag",
        "keys",
        create_map(lit("origin"), "origin").alias("properties"),
        col("origin").alias("sharding_key"),  # alerts of an airport share a queue
    )


def start(spark: SparkSession, nameserver: str, source: str, sink: str, checkpoint: Path) -> StreamingQuery:
    """Start the query, or resume it from its checkpoint, until it has read all present messages."""
    messages = (
        spark.readStream.format("minimq")
        .option("nameserver", nameserver)
        .option("topic", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", PER_TRIGGER)
        .schema("tag string, keys array<string>, body binary")
        .load()
    )
    writer = alerts(messages).writeStream.format("minimq").option("nameserver", nameserver).option("topic", sink)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def run(spark: SparkSession, nameserver: str, source: str, sink: str, checkpoint: Path) -> None:
    """Send a month of flights, and the alerts, with a restart of the query in the middle."""
    table = january()
    middle = len(table) // 2
    send_flights(nameserver, source, table[:middle])
    query = start(spark, nameserver, source, sink, checkpoint)
    while query.isActive and query.lastProgress is None:
        query.awaitTermination(1)  # stop after one of three micro-batches
    query.stop()

    send_flights(nameserver, source, table[middle:])
    start(spark, nameserver, source, sink, checkpoint).awaitTermination()


def main() -> None:
    arguments(__doc__).parse_args()
    with cluster_and_spark(FLIGHTS, ALERTS) as (nameserver, spark), tempfile.TemporaryDirectory() as folder:
        run(spark, nameserver, FLIGHTS, ALERTS, Path(folder))
        sent = read_topic(spark, nameserver, ALERTS, "tag string, properties map<string,string>, body binary")
        sent.selectExpr("tag", "properties", "string(body)").show(5, truncate=False)
        print(f"{sent.count():,} flights left an hour late or later")


if __name__ == "__main__":
    main()
