"""The examples: those of single tasks are short, and each does what it says."""

from __future__ import annotations

import json
import runpy
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from minimq import Admin, LocalCluster
from support.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
#: One file for each task; the longer ones are about flights.
TASKS = [
    *("dead_letters", "fastapi_app", "from_kafka", "notebook", "orders_by_key", "outbox", "parquet_sink", "replay"),
    "worker_pool",
]


@pytest.fixture
def own_cluster() -> Iterator[LocalCluster]:
    """A cluster without any topic."""
    with LocalCluster(brokers=1) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def load(name: str) -> ModuleType:
    return __import__(name)


def test_each_example_of_a_task_is_one_short_file() -> None:
    for name in TASKS:
        text = (EXAMPLES / f"{name}.py").read_text()
        assert text.count("\n") <= 60, name
        assert "flights_data" not in text, name
    listed = (EXAMPLES.parent / "docs" / "index.md").read_text()
    assert all(f"examples/{name}.py" in listed for name in TASKS)


def test_orders_by_key(own_cluster: LocalCluster) -> None:
    example = load("orders_by_key")
    done = example.run(own_cluster.nameserver)
    assert len(done) == example.ORDERS
    assert all(steps == example.STEPS for steps in done.values())


def test_worker_pool(own_cluster: LocalCluster) -> None:
    tasks, calls = load("worker_pool").run(own_cluster.nameserver)
    assert tasks == 40
    assert calls >= 44  # four are tried twice


def test_outbox(own_cluster: LocalCluster, tmp_path: Path) -> None:
    rows, delivered = load("outbox").run(own_cluster.nameserver, tmp_path / "shop.db")
    assert sorted(rows) == sorted(delivered)
    assert len(rows) == 6


def test_dead_letters(own_cluster: LocalCluster) -> None:
    found = load("dead_letters").run(own_cluster.nameserver)
    assert found == ([350, 480, 480], ["listener raised JSONDecodeError"])


def test_replay(own_cluster: LocalCluster) -> None:
    assert load("replay").run(own_cluster.nameserver) == (1000, 1000, 1000)


def test_parquet_sink(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "parquet_sink.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert said.startswith("2000 rows in ")
    assert said.endswith(f" files, {sum(range(2000))} cents\n")


def test_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "notebook.py"), run_name="__main__")
    said = capsys.readouterr().out.split()
    assert said[said.index("Oslo") + 1] == said[said.index("Rome") + 1] == str(100 * sum(range(500)))


def test_fastapi_app(own_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    import uvicorn  # slow to import

    monkeypatch.setenv("MINIMQ_NAMESERVER", own_cluster.nameserver)
    with Admin(own_cluster.nameserver) as admin:
        admin.create_topic("orders", queues=2)
    server = uvicorn.Server(uvicorn.Config(load("fastapi_app").app, port=0, log_level="warning", lifespan="on"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, 30.0)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        order = urllib.request.Request(f"{url}/orders", b'{"item": "espresso"}', {"Content-Type": "application/json"})
        with urllib.request.urlopen(order) as answer:
            assert answer.status == 202
            assert len(json.load(answer)["message_id"]) == 40
        wait_until(lambda: urllib.request.urlopen(f"{url}/worked").read() == b"1", 30.0)
    finally:
        server.should_exit = True
        thread.join(30.0)
    assert not thread.is_alive()


# ---- The longer ones, about flights -------------------------------------------------------------


@pytest.mark.fault
def test_each_ticket_is_delivered_if_it_was_sold(tmp_path: Path) -> None:
    """Each row of the database has its message, though two of its programs die within a sale."""
    outbox, departures = load("flights_outbox"), load("flights_data").departures()
    flights = len(departures.query("month == 1 and day == 30 and hour == 5"))
    with LocalCluster(brokers=2, data_dir=tmp_path / "data", broker_options=outbox.QUICK) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("tickets", queues=1)
        delivered = outbox.run(cluster.nameserver, "tickets", tmp_path / "tickets.db", 30)
    sold = outbox.tickets(tmp_path / "tickets.db")
    assert sorted(delivered) == sorted(sold)
    assert len(sold) == flights // 2 + (flights // 2 + 1) + flights  # the second one died behind its row


@pytest.mark.fault
def test_each_flight_is_chosen_once_though_workers_are_killed(
    cluster: LocalCluster, admin: Admin, topic: str, new_name: Callable[[], str]
) -> None:
    topics = topic, new_name(), new_name()
    for name in topics[1:]:
        admin.create_topic(name, queues=2)
    table = load("flights_data").departures()[:3_000]
    assert load("flights_pipeline").run(cluster.nameserver, f"g-{topic}", topics, table, kills=2) == []
    for name in topics[1:]:
        admin.delete_topic(name)


def test_workers_do_all_flights_but_the_one_that_always_fails(
    cluster: LocalCluster, admin: Admin, topic: str, new_name: Callable[[], str]
) -> None:
    results = new_name()
    admin.create_topic(results, queues=1)
    table = load("flights_data").departures()[:1_000]
    assert load("flights_workers").run(cluster.nameserver, topic, results, f"g-{topic}", table, workers=2) == []
    described = admin.describe_group(f"g-{topic}")
    assert (described.lag, described.dead_letters) == (0, 1)
    [letter] = admin.dead_letters(f"g-{topic}")
    assert (letter.delivery_count, letter.reason) == (3, "listener raised ZeroDivisionError")
    admin.delete_topic(results)


def test_each_question_about_flights_has_its_answer(cluster: LocalCluster, topic: str) -> None:
    service, table = load("flights_service"), load("flights_data").departures()
    questions: list[dict[str, object]] = [
        {"carrier": carrier, "month": 1, "day": day} for carrier in ("UA", "B6", "XX") for day in range(1, 32)
    ]
    with service.service(cluster.nameserver, topic, table):
        answers = service.ask(cluster.nameserver, topic, questions)
    for question, answer in zip(questions, answers, strict=True):
        flights = table[(table.carrier == question["carrier"]) & (table.month == 1) & (table.day == question["day"])]
        if len(flights):
            assert answer == pytest.approx(flights.dep_delay.mean(), abs=0.051)
        else:
            assert answer is None
    assert answers.count(None) == 31


def test_each_flight_that_is_not_cancelled_has_one_reminder(cluster: LocalCluster, admin: Admin, topic: str) -> None:
    table = load("flights_data").departures().query("month == 1 and day == 30 and hour == 8")
    flown = table[table["dep_time"].notna()]
    assert 0 < len(flown) < len(table)
    reminded = load("flights_reminders").run(cluster.nameserver, topic, table)
    assert sorted(reminded) == sorted(zip(flown["carrier"], flown["flight"], strict=True))
    assert [*admin.delayed_messages(topic)] == []
