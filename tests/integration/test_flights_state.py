"""The example of a topic that holds state gives the table that pandas computes straight from the data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from minimq import LocalCluster

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_table_of_planes_is_that_of_the_data(
    cluster: LocalCluster, new_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import flights_data  # found only now
    import flights_state

    table = flights_data.departures()[:5_000]
    planes = flights_state.run(cluster.nameserver, new_name(), table)

    last = table[table["tailnum"].notna()].groupby("tailnum").tail(1)
    last = last[last["dep_time"].notna()]
    assert {tail: json.loads(body)["flight"] for tail, body in planes.items()} == dict(
        zip(last["tailnum"], last["flight"], strict=True)
    )
