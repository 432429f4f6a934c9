"""Clients in forks of the process that made them: nothing hangs there, and nothing is harmed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minimq import LocalCluster

PROGRAM = Path(__file__).parents[1] / "support" / "forking_program.py"


@pytest.mark.timeout(600)
def test_clients_do_nothing_in_a_fork_and_go_on_where_they_were_made() -> None:
    with LocalCluster(brokers=1) as cluster:
        done = subprocess.run(
            [sys.executable, "-W", "error", PROGRAM, cluster.nameserver],
            env=os.environ | {"GRPC_ENABLE_FORK_SUPPORT": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told["closes"].values()) == {"done"}, told["closes"]
    for name, said in told["uses"].items():
        assert said.startswith("Closed: "), (name, said)
        assert "or fork before the first client is made (docs/sending.md)" in said, (name, said)
    assert told["nothing"] == {"gc.collect": "done"}
    assert told["pool"] == [1, 2]
