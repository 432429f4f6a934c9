"""Two brokers of one name: what the operator sees of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from minimq import LocalCluster
from support.command import Minimq, environment
from support.waiting import wait_until

pytestmark = pytest.mark.system


def test_the_command_line_names_a_broker_that_found_its_place_taken(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path / "cluster") as cluster:
        minimq = Minimq(cluster.nameserver)
        assert minimq.json("cluster", "conflicts") == []
        flags = ["--listen", "127.0.0.1:0", "--nameserver", cluster.nameserver, "--data-dir", str(tmp_path / "second")]
        second = subprocess.Popen(
            [sys.executable, "-m", "minimq_broker", *flags], env=environment(), stderr=subprocess.DEVNULL
        )
        with second:
            try:
                wait_until(lambda: minimq.json("cluster", "conflicts"), 30.0)
                [conflict] = minimq.json("cluster", "conflicts")
                assert (conflict["broker"], conflict["id"]) == ("broker-a", 0)
                assert conflict["holder"] == cluster.brokers[0].address
                assert "give one of them another --name" in conflict["reason"]
                assert "Place held by" in minimq("cluster", "conflicts")
                [row] = minimq.json("cluster", "status")  # the one that has the place goes on as if nothing was
                assert (row["address"], row["state"]) == (cluster.brokers[0].address, "up")
            finally:
                second.terminate()
