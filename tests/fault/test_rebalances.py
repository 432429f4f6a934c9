"""A group under a steady load never gives one queue to two, whatever becomes of its members.

These are short runs of `bench/rebalances.py`, which says what is checked.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.chance import SEED, rounds
from support.process import process

pytestmark = [pytest.mark.fault, pytest.mark.rounds]

#: Scales the number of rebalances.
ROUNDS = rounds(4)
SCRIPT = Path(__file__).parents[2] / "bench" / "rebalances.py"


def run(scenario: str, rounds: int) -> dict[str, Any]:
    """Run a scenario and return what it has shown."""
    print(f"MINIMQ_TEST_SEED={SEED} MINIMQ_TEST_ROUNDS={ROUNDS}")
    options = (f"--rounds={rounds}", "--rate=5000", f"--seed={SEED}", "--output=json")
    with process(sys.executable, str(SCRIPT), scenario, *options) as started:
        told, errors = started.communicate()
    assert started.returncode == 0, errors
    print(errors)
    found: dict[str, Any] = json.loads(told)[0]
    assert found["verdict"]["stored"] > 1000
    return found


def assert_sound(found: dict[str, Any], *, twice: bool) -> None:
    """Nothing is lost, no member reads what is another's, and each queue is read in its order."""
    verdict = found["verdict"]
    kinds = ("lost", "unexplained", "skipped", "disordered", "stale", *(() if twice else ("twice",)))
    assert {kind: verdict[kind] for kind in kinds} == dict.fromkeys(kinds, 0), verdict
    assert found["offsets_back"] == 0


@pytest.mark.timeout(60 + 15 * ROUNDS)
def test_members_that_come_and_go() -> None:
    found = run("graceful", 3 * ROUNDS)

    assert_sound(found, twice=False)
    assert found["verdict"]["moves"] > 0


@pytest.mark.timeout(60 + 15 * ROUNDS)
@pytest.mark.long
def test_members_that_ask_nobody_are_found_out() -> None:
    """The checks can fail: without leases messages are delivered twice."""
    assert run("leases-off", 3)["verdict"]["unexplained"] > 0


@pytest.mark.timeout(60 + 15 * ROUNDS)
def test_members_that_are_killed() -> None:
    """Only what a dead member had not committed is delivered twice."""
    assert_sound(run("kill", ROUNDS), twice=True)


@pytest.mark.timeout(60 + 15 * ROUNDS)
def test_members_that_hang_for_longer_than_their_leases_live() -> None:
    """Only what such a member had in flight is delivered twice; what it had fetched ahead is not handed out."""
    found = run("stop", max(1, ROUNDS // 4))

    assert_sound(found, twice=True)
    assert found["notes"]["accepted"] == 0  # commits under its old leases


@pytest.mark.timeout(60 + 15 * ROUNDS)
def test_clocks_that_jump() -> None:
    found = run("clocks", max(2, ROUNDS // 2))

    assert_sound(found, twice=False)
    assert found["notes"]["from_the_future"] > 0
    assert found["notes"]["assignments_changed"] == 0
