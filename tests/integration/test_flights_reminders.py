"""The example with reminders: one for each flight that took place, and none for those that were cancelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimq import Admin, LocalCluster

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_each_flight_that_is_not_cancelled_has_one_reminder(
    cluster: LocalCluster, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import flights_data  # found only now
    import flights_reminders

    table = flights_data.departures().query("month == 1 and day == 30 and hour == 8")
    flown = table[table["dep_time"].notna()]
    assert 0 < len(flown) < len(table)
    reminded = flights_reminders.run(cluster.nameserver, topic, table)
    assert sorted(reminded) == sorted(zip(flown["carrier"], flown["flight"], strict=True))
    assert [*admin.delayed_messages(topic)] == []
