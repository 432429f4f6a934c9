"""The short examples with Spark: what each computes is what plain Python computes from the same flights."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from matplotlib.lines import Line2D
from pyspark.sql import SparkSession

from minimq import Admin, LocalCluster
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


@pytest.mark.long
def test_what_is_no_flight_is_set_apart(
    spark: SparkSession, cluster: LocalCluster, topic: str, flights: list[dict[str, Any]]
) -> None:
    import flights_json
    import flights_spark

    flights_json.send_no_flights(cluster.nameserver, topic)
    messages = flights_spark.read_topic(spark, cluster.nameserver, topic, flights_json.COLUMNS)
    good, others = flights_json.parse(messages)

    delays: defaultdict[str, list[float | None]] = defaultdict(list)
    for flight in flights:
        delays[flight["origin"]].append(flight["dep_delay"])
    left = {origin: [delay for delay in all_of if delay is not None] for origin, all_of in delays.items()}
    assert [tuple(row) for row in flights_json.by_airport(good).collect()] == [
        (origin, len(delays[origin]), len(left[origin]), statistics.fmean(left[origin])) for origin in sorted(delays)
    ]
    rows = others.collect()
    assert Counter(bytes(row.body) for row in rows) == Counter(flights_json.NO_FLIGHTS)
    assert {row.tag for row in rows} == {"stray"}
    assert len({(row.broker_name, row.queue_id, row.offset) for row in rows}) == len(flights_json.NO_FLIGHTS)
    assert good.count() == len(flights)
    spark.catalog.clearCache()


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


@pytest.mark.long
def test_each_alert_is_sent_once_by_a_query_that_was_stopped(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, topic: str, tmp_path: Path
) -> None:
    import flights_alerts
    import flights_data
    import flights_spark
    import flights_stage

    sink = f"{topic}-alerts"
    admin.create_topic(sink, queues=4)
    flights_alerts.run(spark, cluster.nameserver, topic, sink, tmp_path / "checkpoint")
    columns = "broker_name string, queue_id int, tag string, keys array<string>, properties map<string,string>"
    rows = flights_spark.read_topic(spark, cluster.nameserver, sink, f"{columns}, body binary").collect()
    admin.delete_topic(sink)

    names = flights_data.names_of_carriers()
    expected = []
    for message in flights_data.as_messages(topic, flights_stage.january()):
        flight = json.loads(message.body)
        if flight["dep_delay"] is not None and flight["dep_delay"] >= 60:
            body = {name: flight[name] for name in ("flight", "origin", "dest", "dep_delay")}
            body["carrier"] = names[flight["carrier"]]
            expected.append((message.tag, [*message.keys], {"origin": flight["origin"]}, body))
    assert sorted(map(repr, expected)) == sorted(
        repr((row.tag, row.keys, row.properties, sorted_as(expected[0][3], json.loads(row.body)))) for row in rows
    )
    assert len(expected) > 1000
    airports = {row.properties["origin"] for row in rows}
    assert len({(row.properties["origin"], row.broker_name, row.queue_id) for row in rows}) == len(airports) == 3


def sorted_as(example: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the same with the fields in the order of the example, and those that it has not at the end."""
    return {**{name: given[name] for name in example if name in given}, **given}


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


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_flights_are_counted_by_day_as_they_come(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import flights_windows  # found only now

    flights = flights_windows.two_weeks()
    with LocalCluster(brokers=1) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic(flights_windows.TOPIC, queues=3)
        table = flights_windows.run(spark, cluster.nameserver, tmp_path / "checkpoint", flights)
        ends = {queue.queue: queue.max_offset for queue in admin.describe_topic(flights_windows.TOPIC).queues}
        assert admin.committed_offsets("flights-by-day") == ends

    assert list(flights_windows.differences(table.counts, flights.expected)) == []
    too_late = sum(ends.values()) - sum(table.counts.values())
    assert too_late == len(flights.before) + len(flights.after) - sum(flights.expected.values()) > 50
    assert table.updates > len(table.counts)  # counts grew from one micro-batch to the next
