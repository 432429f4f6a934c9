"""The short examples with Spark: what each computes is what plain Python computes from the same flights."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from matplotlib.lines import Line2D
from pyspark.sql import SparkSession

from minimq import LocalCluster
from support.pictures import check_picture

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


@pytest.fixture
def flights(cluster: LocalCluster, topic: str) -> list[dict[str, Any]]:
    """The flights of January, which the topic has as well."""
    import flights_data  # found only now
    import flights_stage

    table = flights_stage.january()
    flights_stage.send_flights(cluster.nameserver, topic, table)
    return [json.loads(message.body) for message in flights_data.as_messages(topic, table)]


def test_without_java_the_demonstration_and_the_examples_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import flights_spark
    import flights_steps

    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(SystemExit, match="Java 17 or newer"):
        flights_steps.main()
    with pytest.raises(SystemExit, match="Java 17 or newer"), flights_spark.quiet_spark():
        pass


def test_views_give_the_busiest_carriers(
    spark: SparkSession, cluster: LocalCluster, topic: str, flights: list[dict[str, Any]]
) -> None:
    import flights_data
    import flights_sql

    flights_sql.create_views(spark, cluster.nameserver, topic)
    found = [tuple(row) for row in spark.sql(flights_sql.BUSIEST_CARRIERS).collect()]

    delays: defaultdict[tuple[str, str], list[float | None]] = defaultdict(list)
    for flight in flights:
        delays[flight["origin"], flight["carrier"]].append(flight["dep_delay"])
    names = flights_data.names_of_carriers()
    expected = []
    for airport in sorted({origin for origin, _ in delays}):
        carriers = sorted(((len(all_of), key[1]) for key, all_of in delays.items() if key[0] == airport), reverse=True)
        for place, (number, carrier) in enumerate(carriers[:3], start=1):
            mean = statistics.fmean(delay for delay in delays[airport, carrier] if delay is not None)
            expected.append((airport, place, names[carrier], number, mean))
    assert found == expected
    assert len(found) == 9


def test_what_is_drawn_is_what_the_data_says(
    spark: SparkSession, cluster: LocalCluster, topic: str, flights: list[dict[str, Any]], tmp_path: Path
) -> None:
    import flights_plot
    import flights_spark

    messages = flights_spark.read_topic(spark, cluster.nameserver, topic, "body binary")
    figure = flights_plot.draw(flights_plot.delays_by_hour(messages).toPandas())

    delays: defaultdict[int, list[float]] = defaultdict(list)
    for flight in flights:
        if flight["dep_delay"] is not None:
            delays[flight["hour"]].append(flight["dep_delay"])
    (axes,) = figure.axes
    drawn = {line.get_label(): points(line) for line in axes.get_lines()}
    assert drawn["mean delay"] == [(hour, statistics.fmean(delays[hour])) for hour in sorted(delays)]
    assert drawn["median delay"] == [(hour, statistics.median(delays[hour])) for hour in sorted(delays)]
    assert f"{sum(map(len, delays.values())):,} departures" in axes.get_title(loc="left")
    assert "hour" in axes.get_xlabel()
    assert "minutes" in axes.get_ylabel()
    figure.savefig(tmp_path / "plot.png", dpi=150)
    check_picture((tmp_path / "plot.png").read_bytes())


def points(line: Line2D) -> list[tuple[float, float]]:
    xy: Any = line.get_xydata()
    return [(x, y) for x, y in xy]


# ---- The example of a streaming aggregation: late data, a restart, and counts that are right ----
