"""From topic to topic: a stream picks out the flights that left late, names their carriers, and sends each on once.

    pip install '.[spark,demo]'   # Spark, pandas and the flights; and Java
    python examples/flights_alerts.py

Flights come in by one topic, alerts go out by another. The query is stopped in the middle and goes on from its
checkpoint: no alert is missing, and none is there twice.
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
#: How many flights a micro-batch takes: about five days.
PER_TRIGGER = 4500


def alerts(messages: DataFrame) -> DataFrame:
    """Make messages about the flights that left an hour late or later, with the columns that the sink knows."""
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
    """Start the query, or go on with it where its checkpoint is, until all there is has been read."""
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
    """Send a month of flights and the alerts about them, with a stop in the middle."""
    table = january()
    middle = len(table) // 2
    send_flights(nameserver, source, table[:middle])
    query = start(spark, nameserver, source, sink, checkpoint)
    while query.isActive and query.lastProgress is None:
        query.awaitTermination(1)  # one micro-batch of three is enough
    query.stop()

    send_flights(nameserver, source, table[middle:])
    start(spark, nameserver, source, sink, checkpoint).awaitTermination()


def main() -> None:
    """Run it on this machine, and look at the alerts."""
    arguments(__doc__).parse_args()
    with cluster_and_spark(FLIGHTS, ALERTS) as (nameserver, spark), tempfile.TemporaryDirectory() as folder:
        run(spark, nameserver, FLIGHTS, ALERTS, Path(folder))
        sent = read_topic(spark, nameserver, ALERTS, "tag string, properties map<string,string>, body binary")
        sent.selectExpr("tag", "properties", "string(body)").show(5, truncate=False)
        print(f"{sent.count():,} flights left an hour late or later")


if __name__ == "__main__":
    main()
