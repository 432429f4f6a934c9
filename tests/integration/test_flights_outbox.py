"""The example with tickets: each row of the database has its message, though two of its programs die within a sale."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimq import Admin, LocalCluster

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.fault
def test_each_ticket_is_delivered_if_it_was_sold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import flights_data  # found only now
    import flights_outbox

    flights = len(flights_data.departures().query("month == 1 and day == 30 and hour == 5"))
    with LocalCluster(brokers=2, data_dir=tmp_path / "data", broker_options=flights_outbox.QUICK) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("tickets", queues=1)
        delivered = flights_outbox.run(cluster.nameserver, "tickets", tmp_path / "tickets.db", 30)
    sold = flights_outbox.tickets(tmp_path / "tickets.db")
    assert sorted(delivered) == sorted(sold)
    assert len(sold) == flights // 2 + (flights // 2 + 1) + flights  # the second one died behind its row
