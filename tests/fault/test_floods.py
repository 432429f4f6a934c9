"""Clients that flood a broker: its memory stays bounded, and another client is served meanwhile.

It is a short run of `bench/floods.py`, which says what is done.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "floods.py"
#: Memory that the broker may have, in MiB: about a gigabyte more comes in each attack.
MOST_MIB = 512
ATTACKS = 2

pytestmark = [pytest.mark.fault, pytest.mark.timeout(400)]


def test_a_broker_that_is_flooded_has_bounded_memory_and_serves_others() -> None:
    command = [sys.executable, str(SCRIPT), "--check", "--output", "json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(rows) == ATTACKS
    for row in rows:
        assert row["peak_mib"] < MOST_MIB, row
        assert not row["broker_ended"], row
        assert row["sent"], row
        assert not row["lost"], row
