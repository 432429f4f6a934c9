"""The pool of workers on real flights: what they compute is what pandas computes, and only the poison is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_workers_do_all_flights_but_the_one_that_always_fails(
    cluster: LocalCluster, admin: Admin, topic: str, new_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import flights_data  # found only now
    import flights_workers

    results = new_name()
    admin.create_topic(results, queues=1)
    table = flights_data.departures()[:1_000]
    assert flights_workers.run(cluster.nameserver, topic, results, f"g-{topic}", table, workers=2) == []
    described = admin.describe_group(f"g-{topic}")
    assert (described.lag, described.dead_letters) == (0, 1)
    [letter] = admin.dead_letters(f"g-{topic}")
    assert (letter.tries, letter.reason) == (3, "listener raised ZeroDivisionError")
    admin.delete_topic(results)
