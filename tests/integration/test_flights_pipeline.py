"""The pipeline on real flights, some of whose workers are killed: what it has chosen is what pandas chooses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.fault
def test_each_flight_is_chosen_once_though_workers_are_killed(
    cluster: LocalCluster, admin: Admin, topic: str, new_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import flights_data  # found only now
    import flights_pipeline

    topics = topic, new_name(), new_name()
    for name in topics[1:]:
        admin.create_topic(name, queues=2)
    table = flights_data.departures()[:3_000]
    assert flights_pipeline.run(cluster.nameserver, f"g-{topic}", topics, table, kills=2) == []
    for name in topics[1:]:
        admin.delete_topic(name)
