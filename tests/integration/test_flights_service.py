"""The service that knows the flights: what it answers is what pandas computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimq import LocalCluster

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_each_question_about_flights_has_its_answer(
    cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import flights_data  # found only now
    import flights_service

    table = flights_data.departures()
    questions: list[dict[str, object]] = [
        {"carrier": carrier, "month": 1, "day": day} for carrier in ("UA", "B6", "XX") for day in range(1, 32)
    ]
    with flights_service.service(cluster.nameserver, topic, table):
        answers = flights_service.ask(cluster.nameserver, topic, questions)
    for question, answer in zip(questions, answers, strict=True):
        flights = table[(table.carrier == question["carrier"]) & (table.month == 1) & (table.day == question["day"])]
        if len(flights):
            assert answer == pytest.approx(flights.dep_delay.mean(), abs=0.051)
        else:
            assert answer is None
    assert answers.count(None) == 31
