"""The examples of single tasks do what they say, and are short enough to be pasted."""

from __future__ import annotations

import json
import runpy
import threading
import urllib.request
from collections.abc import Iterator
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
