"""Clients that flood a broker or a name server: its memory stays bounded, and another client is served meanwhile.

These are runs of `bench/flood_table.py`, which says what is done. How long others wait is not looked at here, since the
machine is shared.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.process import process

SCRIPT = Path(__file__).parents[2] / "bench" / "flood_table.py"
#: Memory that a server may have, in MiB.
MAX_MIB = 1_024  # docs/limits.md says so
#: All attacks on a broker; those that are played briefly are the same.
ATTACKS = (
    *("pulls_unread", "snapshots_unread", "appends_rejected", "appends_half_sent", "appends_whole"),
    *("connections_half_sent", "commits_half_sent", "commits_of_nothing", "joins_of_nothing", "topics_of_long_names"),
    *("topics_of_rather_long_names", "long_filters", "long_client_ids", "members_that_claim", "heartbeats_unread"),
    *("million_queues", "million_offsets", "silent_streams"),
)
#: All on a name server.
NAMESERVER_ATTACKS = (
    *("many-watchers", "modest-watchers", "unread-watches", "unknown-topics", "huge-tables", "full-tables"),
    *("many-brokers", "departures", "conflicts", "huge-calls", "large-calls", "listings", "reports", "held-reports"),
    *("false-replicas", "plain-reports", "look-ups"),
)

pytestmark = pytest.mark.fault


def rows(*options: str) -> list[dict[str, Any]]:
    with process(sys.executable, str(SCRIPT), "--output=json", *options) as started:
        told, errors = started.communicate()
    print(told)
    assert started.returncode == 0, errors
    found = [json.loads(line) for line in told.splitlines()]
    for row in found:
        assert row["peak_mib"] < MAX_MIB, row
        assert not row["ended"], row
        assert not row["lost"], row
    return found


@pytest.mark.timeout(400)
def test_a_broker_that_is_flooded_has_bounded_memory_and_serves_others() -> None:
    found = rows("--check")
    assert [row["attack"] for row in found[:-1]] == [*ATTACKS]
    assert found[-1]["calls"]["send"][0] > 0


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_longer_flood_of_a_broker() -> None:
    found = rows("--seconds=20", *ATTACKS)
    assert [row["attack"] for row in found] == [*ATTACKS]
    assert all(row["calls"]["send"][0] > 0 for row in found)


def check_nameserver(attack: str, seconds: float) -> None:
    # Leases are long, and so is the timeout: a loaded machine is no flood.
    [row] = rows(attack, f"--seconds={seconds}", "--lease=60", "--max-wait=60")
    assert row["acts"] > 0
    assert row["failures"] == []
    assert row["failovers"] == 0
    assert row["calls"].keys() == {"look-up", "heartbeat", "lease", "calm"}
    assert row["step_ms"][0] > 0


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.parametrize("attack", ["unknown-topics", "huge-calls", "listings", "held-reports"])  # one of each kind
def test_a_nameserver_that_is_flooded_keeps_its_memory_and_answers_others(attack: str) -> None:
    check_nameserver(attack, 1.0)


@pytest.mark.long
@pytest.mark.system
@pytest.mark.timeout(600)
@pytest.mark.parametrize("attack", NAMESERVER_ATTACKS)
def test_a_longer_flood_of_a_nameserver(attack: str) -> None:
    check_nameserver(attack, 10.0)
