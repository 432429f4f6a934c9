"""The programs of docs/processes.md run under gunicorn, under Celery and as pools of processes."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, PullConsumer
from support.pages import blocks_of
from support.waiting import wait_until

_ENDS_S = 30
_readers = itertools.count()


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    """The address of a cluster with the topic of the page."""
    with LocalCluster(brokers=1) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("orders", queues=2)
        yield cluster.nameserver


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the programs of the page, each in the file that its first line names."""
    for block in blocks_of("docs/processes.md", "python"):
        name = re.fullmatch(r"# ([\w.]+\.py)", block.partition("\n")[0])
        assert name is not None, block
        (tmp_path / name[1]).write_text(block)
    return tmp_path


@contextmanager
def running(folder: Path, command: list[str], variables: Mapping[str, str]) -> Iterator[Path]:
    """Run a program with the Python of the tests, stop it as an operator does; yields the file of what it prints."""
    said = folder / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=folder, env=os.environ | variables, stdout=output, stderr=output
        )
    try:
        yield said
        process.terminate()
        assert process.wait(_ENDS_S) == 0, said.read_text()
    finally:
        process.kill()
        process.wait()


def received(nameserver: str, expected: set[bytes]) -> set[bytes]:
    """Return the expected bodies that the topic has, as soon as it has all."""
    bodies: set[bytes] = set()

    def have_come() -> bool:
        bodies.update(message.body for message in consumer.poll(0.5))
        return expected <= bodies

    with PullConsumer(nameserver, group=f"reader-{next(_readers)}", start="earliest") as consumer:
        consumer.subscribe("orders")
        wait_until(have_come)
    return expected & bodies


@pytest.mark.parametrize(
    "options",
    [
        [],
        pytest.param(["--preload"], marks=pytest.mark.slow),
        pytest.param(["--worker-class", "sync"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_gunicorn(shop: str, folder: Path, options: list[str]) -> None:
    bodies = {f"{' '.join(options)} {number}".encode() for number in range(20)}
    variables = {"SHOP_NAMESERVER": shop, "SHOP_BIND": "127.0.0.1:0"}
    with running(folder, ["gunicorn", *options, "shop:app"], variables) as said:
        address = wait_until(lambda: re.findall(r"Listening at: (http://\S+)", said.read_text()))
        for body in bodies:
            with urllib.request.urlopen(address[0], body, timeout=_ENDS_S) as response:
                assert response.read()
    assert received(shop, bodies) == bodies


def test_celery(shop: str, folder: Path) -> None:
    for name in ("queue", "control"):
        (folder / name).mkdir()
    variables = {"SHOP_NAMESERVER": shop, "SHOP_CELERY_BROKER": "filesystem://", "PYTHONPATH": str(folder)}
    # In place of Redis: Celery keeps its messages in a folder.
    (folder / "celeryconfig.py").write_text(
        "broker_transport_options = dict(data_folder_in='queue', data_folder_out='queue', control_folder='control')\n"
        "broker_transport_options['polling_interval'] = 0.1\n"
    )
    (folder / "start.py").write_text(
        "import tasks\n"
        "tasks.app.config_from_object('celeryconfig')\n"
        "for number in range(1000, 1020):\n"
        "    tasks.order.delay(number)\n"
    )
    subprocess.run([sys.executable, "start.py"], cwd=folder, env=os.environ | variables, check=True, timeout=_ENDS_S)
    command = ["celery", "-A", "tasks", "--config", "celeryconfig", "worker", "--concurrency", "2", "--pool", "prefork"]
    with running(folder, command, variables) as said:
        expected = {b"order %d" % number for number in range(1000, 1020)}
        assert received(shop, expected) == expected, said.read_text()


def test_multiprocessing(shop: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "pool.py"],
        cwd=folder,
        env=os.environ | {"SHOP_NAMESERVER": shop},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout.strip() == str(["SEND_OK"] * 10), done.stderr
    expected = {b"order %d" % number for number in range(11)}
    assert received(shop, expected) == expected
