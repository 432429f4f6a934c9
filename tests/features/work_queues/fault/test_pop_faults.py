"""A work queue loses no message, and gives none to two, whatever becomes of its workers and brokers.

These are short runs of `bench/pop_faults.py`, which says what is checked.
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

ROUNDS = rounds(2)
SCRIPT = Path(__file__).parents[4] / "bench" / "pop_faults.py"


def run(scenario: str, count: int) -> dict[str, Any]:
    """Run a scenario and return what it has shown."""
    print(f"MINIMQ_TEST_SEED={SEED} MINIMQ_TEST_ROUNDS={ROUNDS}")
    options = (f"--scenario={scenario}", f"--rounds={count}", "--rate=100", f"--seed={SEED}")
    with process(sys.executable, str(SCRIPT), *options) as started:
        told, errors = started.communicate()
    assert told, errors
    found: dict[str, Any] = json.loads(told)
    print(found, errors)
    assert found["sent"] > 20
    return found


def assert_sound(found: dict[str, Any]) -> None:
    wrong = {kind: found[kind] for kind in ("lost", "two_hands", "again", "count", "out_of_order", "damaged")}
    assert wrong == dict.fromkeys(wrong, 0), found["examples"]


@pytest.mark.timeout(150 + 30 * ROUNDS)
def test_nothing_is_lost_or_done_by_two_though_workers_and_brokers_die() -> None:
    assert_sound(run("kill", ROUNDS))


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["failover", "hang", "clocks", "fifo-kill", "fifo-failover", "fifo-hang"])
@pytest.mark.timeout(150 + 30 * ROUNDS)
def test_nothing_is_lost_or_done_by_two(scenario: str) -> None:
    assert_sound(run(scenario, ROUNDS))


@pytest.mark.long
@pytest.mark.timeout(150)
def test_acknowledgements_that_were_not_sent_are_found_out() -> None:
    """The checks can fail."""
    assert run("forgetful", 1)["again"] > 0
