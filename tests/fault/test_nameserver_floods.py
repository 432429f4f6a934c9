"""A name server under floods keeps its memory, answers others, and lets no master lose its lease.

These are short runs of `bench/nameserver_floods.py`, which says what is measured; how long others wait is not looked at
here, since the machine is shared.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from support.process import process

pytestmark = [pytest.mark.fault, pytest.mark.system]

SCRIPT = Path(__file__).parents[2] / "bench" / "nameserver_floods.py"
MOST_MB = 1024


def check(attack: str, seconds: float) -> None:
    # Leases are long, and so is the patience: a loaded machine is no flood.
    options = (f"--seconds={seconds}", "--lease=60", "--patience=60", "--output=json")
    with process(sys.executable, str(SCRIPT), attack, *options) as started:
        told, errors = started.communicate()
    print(told)
    assert started.returncode == 0, errors
    [line] = json.loads(told)
    assert line["acts"] > 0
    assert line["memory_mb"] < MOST_MB
    assert line["failures"] == []
    assert line["failovers"] == 0
    assert line["calls"].keys() == {"look-up", "heartbeat", "lease", "calm"}
    assert line["step_ms"][0] > 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "attack",
    ["unknown-topics", "huge-calls", "listings", "held-reports"],  # one of each kind
)
def test_a_flood(attack: str) -> None:
    check(attack, 1.0)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "attack",
    [
        "many-watchers",
        "modest-watchers",
        "unread-watches",
        "unknown-topics",
        "huge-tables",
        "full-tables",
        "many-brokers",
        "departures",
        "conflicts",
        "huge-calls",
        "large-calls",
        "listings",
        "reports",
        "held-reports",
        "false-replicas",
        "plain-reports",
        "look-ups",
    ],
)
def test_a_longer_flood(attack: str) -> None:
    check(attack, 10.0)
