"""The example of a streaming aggregation: late data, a restart, and counts that are right."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from minimq import Admin, LocalCluster

EXAMPLES = Path(__file__).parents[2] / "examples"


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
