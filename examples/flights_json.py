"""JSON bodies as columns: flights become a table, other messages are separated and counted.

    pip install '.[spark,demo]'   # Spark, pandas and the flights; and Java
    python examples/flights_json.py

A topic has a month of flights, and a few messages that do not belong there. These neither stop the query nor get lost
in it: the script prints each of them, with its position in the topic.
"""

from __future__ import annotations

from flights_spark import read_topic
from flights_stage import arguments, cluster_and_spark, january, send_flights
from pyspark.sql import DataFrame
from pyspark.sql.functions import avg, col, count, from_json

from minimq import Message, Producer

TOPIC = "flights"
COLUMNS = "broker_name STRING, queue_id INT, offset BIGINT, tag STRING, body BINARY"

#: The wanted fields of a flight. Nullable ones are written as 2.0, so even whole minutes are a DOUBLE. `unreadable` is
#: no field: Spark puts the whole text there if it is no JSON, or if a field has another type.
FLIGHT = "origin STRING, dest STRING, dep_delay DOUBLE, unreadable STRING"

#: Blank, no JSON, truncated, another type, a list, and one without fields.
NO_FLIGHTS = (
    b" ",
    b"gate closed",
    b'{"origin":"JFK","dest":"LA',
    b'{"origin":"JFK","dest":"LAX","dep_delay":"a while"}',
    b'["JFK","LAX",2.0]',
    b"{}",
)


def parse(messages: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Divide messages into flights, with a column for each field, and other messages, unchanged."""
    flight = from_json(messages.body.cast("string"), FLIGHT, {"columnNameOfCorruptRecord": "unreadable"})
    # Cached, so that both halves come from the same messages, which are read once.
    parsed = messages.withColumn("flight", flight).cache()
    # For a blank body `flight` is null, and so is its origin.
    is_flight = col("flight.unreadable").isNull() & col("flight.origin").isNotNull()
    flights = parsed.where(is_flight).select("tag", "flight.*").drop("unreadable")
    return flights, parsed.where(~is_flight).drop("flight")


def by_airport(flights: DataFrame) -> DataFrame:
    """Return the number of flights, the number of departures and their mean delay, by airport."""
    figures = (
        count("*").alias("flights"),
        count("dep_delay").alias("departed"),
        avg("dep_delay").alias("mean_delay_min"),
    )
    return flights.groupBy("origin").agg(*figures).orderBy("origin")


def send_no_flights(nameserver: str, topic: str) -> None:
    with Producer(nameserver) as producer:
        producer.send_many(Message(topic, body, tag="stray") for body in NO_FLIGHTS)


def main() -> None:
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
