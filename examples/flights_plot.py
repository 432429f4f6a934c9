"""A plot of results from Spark: the delay of flights by the hour of scheduled departure.

    pip install '.[spark,demo]'   # Spark, pandas and the flights; and Java
    python examples/flights_plot.py --output delays_by_hour.png

A year of flights goes through a topic; Spark aggregates it to 19 rows, which are plotted.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from flights_data import departures
from flights_spark import read_topic
from flights_stage import arguments, cluster_and_spark, send_flights
from matplotlib.figure import Figure
from pyspark.sql import DataFrame
from pyspark.sql.functions import avg, count, from_json, median

TOPIC = "flights"


def delays_by_hour(messages: DataFrame) -> DataFrame:
    """Return mean and median delay in minutes of flights that departed, by scheduled hour (local time)."""
    fields = from_json(messages.body.cast("string"), "hour INT, dep_delay DOUBLE")
    left = messages.select(fields.alias("flight")).select("flight.*").where("dep_delay IS NOT NULL")
    figures = count("*").alias("flights"), avg("dep_delay").alias("mean"), median("dep_delay").alias("median")
    return left.groupBy("hour").agg(*figures).orderBy("hour")


def draw(delays: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(
        f"Delays grow until evening, but half the flights leave at most {delays['median'].max():.0f} minutes late\n"
        f"{delays['flights'].sum():,} departures from New York in 2013",
        loc="left",
    )
    for column, colour in (("mean", "tab:red"), ("median", "tab:blue")):
        axes.plot(delays["hour"], delays[column], color=colour, marker="o", label=f"{column} delay")
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xlabel("scheduled departure (hour of the day, local time)")
    axes.set_ylabel("departure delay (minutes)")
    axes.set_xticks(delays["hour"])
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--output", type=Path, default=Path("delays_by_hour.png"), help="where the plot is written")
    output = parser.parse_args().output
    with cluster_and_spark(TOPIC) as (nameserver, spark):
        send_flights(nameserver, TOPIC, departures())
        delays: pd.DataFrame = delays_by_hour(read_topic(spark, nameserver, TOPIC, "body binary")).toPandas()
    draw(delays).savefig(output, dpi=150)
    print(f"{output}: {delays['flights'].sum():,} flights in {len(delays)} points")


if __name__ == "__main__":
    main()
