"""A topic in Spark SQL: a temporary view of its messages, a view of their contents, and a query.

    pip install '.[spark,demo]'   # Spark, pandas and the flights; and Java
    python examples/flights_sql.py

Which three carriers had most flights from each airport of New York in a month, and what was their mean delay?
"""

from __future__ import annotations

from flights_data import names_of_carriers
from flights_stage import arguments, cluster_and_spark, january, send_flights
from pyspark.sql import SparkSession

TOPIC = "flights"

#: Queries can use only the columns in parentheses, and only these are copied from Python to Spark.
MESSAGES = """
    CREATE OR REPLACE TEMPORARY VIEW messages (tag STRING, body BINARY)
    USING minimq
    OPTIONS (nameserver '{nameserver}', topic '{topic}')
"""

BUSIEST_CARRIERS = """
    SELECT origin, place, name, flights, mean_delay_min
    FROM (
        SELECT
            origin,
            carrier,
            count(*) AS flights,
            avg(dep_delay) AS mean_delay_min,
            rank() OVER (PARTITION BY origin ORDER BY count(*) DESC) AS place
        FROM flights
        GROUP BY origin, carrier
    )
    JOIN carriers USING (carrier)
    WHERE place <= 3
    ORDER BY origin, place
"""


def create_views(spark: SparkSession, nameserver: str, topic: str) -> None:
    """Create the views `messages`, `flights` and `carriers`. They live as long as the session, and hold no data."""
    spark.sql(MESSAGES.format(nameserver=nameserver, topic=topic))
    fields = "from_json(string(body), 'origin STRING, dep_delay DOUBLE') AS flight"
    flights = spark.table("messages").selectExpr("tag AS carrier", fields).select("carrier", "flight.*")
    flights.createOrReplaceTempView("flights")
    carriers = spark.createDataFrame(list(names_of_carriers().items()), "carrier STRING, name STRING")
    carriers.createOrReplaceTempView("carriers")


def main() -> None:
    arguments(__doc__).parse_args()
    with cluster_and_spark(TOPIC) as (nameserver, spark):
        send_flights(nameserver, TOPIC, january())
        create_views(spark, nameserver, TOPIC)
        spark.sql(BUSIEST_CARRIERS).show(truncate=False)


if __name__ == "__main__":
    main()
