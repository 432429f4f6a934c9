"""Spark writes each message exactly once, whatever is killed at whatever moment.

These are short runs of `bench/spark_exactly_once.py`, which says what is checked.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.chance import IS_SEED_GIVEN, SEED, rounds
from support.process import process

pytestmark = [pytest.mark.fault, pytest.mark.rounds, pytest.mark.spark, pytest.mark.slow]

#: Scales the number of queries.
ROUNDS = rounds(1)
#: What the one query of a short run has: the two faults that come when one broker has decided and another has not.
IN_SHORT = ("driver, half decided", "broker, half decided") if ROUNDS == 1 else ()
#: Messages that a query copies.
ROWS = 4000
SCRIPT = Path(__file__).parents[2] / "bench" / "spark_exactly_once.py"


def run(scenario: str, runs: int, *flags: str, status: int = 0) -> dict[str, Any]:
    """Run a scenario and return what it has shown."""
    print(f"MINIMQ_TEST_SEED={SEED} MINIMQ_TEST_ROUNDS={ROUNDS}")
    options = (f"--runs={runs}", f"--rows={ROWS}", "--batches=4", f"--seed={SEED}", "--output=json", *flags)
    with process(sys.executable, str(SCRIPT), scenario, *options) as started:
        told, errors = started.communicate()
    print(errors)
    assert started.returncode == status, told or errors
    found: dict[str, Any] = json.loads(told)[0]
    assert len(found["lines"]) == runs
    assert found["damage"] == []
    return found


@pytest.mark.timeout(300 + 120 * ROUNDS)
def test_each_message_is_written_once() -> None:
    found = run("transactional", 1 if IN_SHORT else 2 * ROUNDS, *(f"--fault={fault}" for fault in IN_SHORT))

    # Of two faults that a random seed may put together the first comes in any case.
    assert IS_SEED_GIVEN or {fault for line in found["lines"] for fault in line["faults"]} >= {*IN_SHORT}
    kinds = ("lost", "twice", "strange", "disordered", "wrong_keys")
    for line in found["lines"]:
        assert {kind: line["verdict"][kind] for kind in kinds} == dict.fromkeys(kinds, 0), line
        assert line["verdict"]["rows"] == line["verdict"]["stored"] == ROWS
        assert line["left"] == 0, line
    assert sum(line["restarts"] for line in found["lines"]) > 0


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_message_that_is_sent_again_is_found() -> None:
    """The check can fail."""
    [line] = run("transactional", 1, "--fault=worker", "--plant", status=1)["lines"]

    assert (line["verdict"]["twice"], line["verdict"]["wrong_keys"], line["verdict"]["lost"]) == (1, 1, 0)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_without_transactions_messages_are_written_twice() -> None:
    """This is why there are transactions; and nothing is lost all the same."""
    [line] = run("plain", 1, "--fault=driver, staged")["lines"]

    assert line["verdict"]["lost"] == 0
    assert line["verdict"]["twice"] > 0
