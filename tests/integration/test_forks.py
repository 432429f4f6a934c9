"""Clients in forks of the process that made them: nothing hangs there, and nothing is harmed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minimq import LocalCluster

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.timeout(600)
def test_clients_do_nothing_in_a_fork_and_go_on_where_they_were_made() -> None:
    with LocalCluster(brokers=1) as cluster:
        done = subprocess.run(
            [sys.executable, "-W", "error", SUPPORT / "forking_program.py", cluster.nameserver],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told["closes"].values()) == {"done"}, told["closes"]
    for name, said in told["uses"].items():
        assert said.startswith("Closed: "), (name, said)
        assert "or fork before the first client is made (docs/processes.md)" in said, (name, said)
    assert told["nothing"] == {"gc.collect": "done"}
    assert told["pool"] == [1, 2]


@pytest.mark.parametrize(
    ("parent", "said"),
    [
        ("never", "SEND_OK"),
        ("closed", "SEND_OK"),
        ("open", "UsageError: no client works in process"),
        ("grandparent", "UsageError: no client works in process"),
        ("supported", "SEND_OK"),
    ],
)
def test_a_child_makes_its_own_client_or_is_told_why_not(
    cluster: LocalCluster, topic: str, parent: str, said: str
) -> None:
    outcomes = run_parent(parent, cluster.nameserver, topic)
    assert len(outcomes) == 5
    assert all(outcome.startswith(said) for outcome in outcomes), outcomes


def test_children_that_use_no_client_survive_a_fork_beside_an_open_one(cluster: LocalCluster, topic: str) -> None:
    assert run_parent("busy", cluster.nameserver, topic) == ["0"] * 100


def run_parent(kind: str, nameserver: str, topic: str) -> list[str]:
    """Return the outcomes of the children of a program.

    No variable of the environment prepares it for forks, but for "supported".
    """
    done = subprocess.run(
        [sys.executable, SUPPORT / "fork_parent.py", kind, nameserver, topic],
        env={name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
        | ({"GRPC_ENABLE_FORK_SUPPORT": "1"} if kind == "supported" else {}),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes: list[str] = json.loads(done.stdout)
    return outcomes
