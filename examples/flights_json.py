"""JSON bodies as columns: what is a flight becomes a table, what is none is set apart and counted.

    pip install '.[spark,demo]'   # Spark, pandas and the flights; and Java
    python examples/flights_json.py

A month of flights goes through a topic, and so do a few messages that somebody should not have sent. They neither
stop the query nor vanish in it: the script prints each of them, with its place in the topic.
"""

from __future__ import annotations

from flights_spark import read_topic
from flights_stage import arguments, cluster_and_spark, january, send_flights
from pyspark.sql import DataFrame
from pyspark.sql.functions import avg, col, count, from_json

from minimq import Message, Producer

TOPIC = "flights"
COLUMNS = "broker_name STRING, queue_id INT, offset BIGINT, tag STRING, body BINARY"

#: The fields of a flight that are wanted. Those that may be missing come as 2.0, so even whole minutes are a DOUBLE.
#: `unreadable` is no field: there Spark puts the whole text if it is no JSON, or if a field has another type.
FLIGHT = "origin STRING, dest STRING, dep_delay DOUBLE, unreadable STRING"

#: Blank, no JSON, cut off, another type, a list, and one that lacks everything.
NO_FLIGHTS = (
    b" ",
    b"gate closed",
    b'{"origin":"JFK","dest":"LA',
    b'{"origin":"JFK","dest":"LAX","dep_delay":"a while"}',
    b'["JFK","LAX",2.0]',
    b"{}",
)


def parse(messages: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Divide messages into flights, with a column for each field, and those that are no flights, as they came."""
    flight = from_json(messages.body.cast("string"), FLIGHT, {"columnNameOfCorruptRecord": "unreadable"})
    # Cached, so that both halves are made of the same messages, and these are read once.
    parsed = messages.withColumn("flight", flight).cache()
    # A blank body has no `flight` at all, and then no origin either.
    is_flight = col("flight.unreadable").isNull() & col("flight.origin").isNotNull()
    flights = parsed.where(is_flight).select("tag", "flight.*").drop("unreadable")
    return flights, parsed.where(~is_flight).drop("flight")


def by_airport(flights: DataFrame) -> DataFrame:
    """Return how many flights each airport had, how many of them left, and how late these were."""
    figures = (
        count("*").alias("flights"),
        count("dep_delay").alias("departed"),
        avg("dep_delay").alias("mean_delay_min"),
    )
    return flights.groupBy("origin").agg(*figures).orderBy("origin")


def send_no_flights(nameserver: str, topic: str) -> None:
    """Send what does not belong there."""
    with Producer(nameserver) as producer:
        producer.send_many(Message(topic, body, tag="stray") for body in NO_FLIGHTS)


def main() -> None:
    """Send both, and print what Spark makes of it."""
    arguments(__doc__).parse_args()
    with cluster_and_spark(TOPIC) as (nameserver, spark):
        send_flights(nameserver, TOPIC, january())
        send_no_flights(nameserver, TOPIC)
        flights, others = parse(read_topic(spark, nameserver, TOPIC, COLUMNS))
        print(f"{flights.count():,} flights, {others.count()} messages that are none")
        by_airport(flights).show()
        others.withColumn("body", col("body").cast("string")).show(truncate=False)


if __name__ == "__main__":
    main()
