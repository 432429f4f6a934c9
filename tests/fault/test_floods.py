"""Clients that flood a broker: its memory stays bounded, and another client is served meanwhile.

These are runs of `bench/floods.py`, which says what is done. How long another client waits is not looked at here, since
the machine is shared.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.process import process

SCRIPT = Path(__file__).parents[2] / "bench" / "floods.py"
#: Memory that the broker may have, in MiB.
MOST_MIB = 1_024  # docs/limits.md says so
#: All attacks; those that are played briefly are the same.
ATTACKS = CHECKED = 18

pytestmark = pytest.mark.fault


def rows(*options: str) -> list[dict[str, Any]]:
    with process(sys.executable, str(SCRIPT), "--output=json", *options) as started:
        told, errors = started.communicate()
    print(told)
    assert started.returncode == 0, errors
    found = [json.loads(line) for line in told.splitlines()]
    for row in found:
        assert row["peak_mib"] < MOST_MIB, row
        assert not row["broker_ended"], row
        assert not row["lost"], row
    return found


@pytest.mark.timeout(400)
def test_a_broker_that_is_flooded_has_bounded_memory_and_serves_others() -> None:
    found = rows("--check")
    assert len(found) == CHECKED + 1
    assert found[-1]["sent"] > 0


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_longer_flood() -> None:
    found = rows()
    assert len(found) == ATTACKS
    assert all(row["sent"] > 0 for row in found)
