"""The store agrees with its log and with a dictionary of messages, whatever is done to it, and wherever it crashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from machine.machine import run
from machine.mutants import mutants
from support.chance import SEED

#: Far apart, so that no two tests play the same episodes.
_SEEDS_PER_TEST = 1_000_000


def test_the_store_agrees_with_its_log_and_a_model(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    run(tmp_path / "machine", SEED, pytestconfig.getoption("--machine-steps") or 2_000)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("part", range(1, 5))
def test_the_store_agrees_with_them_for_long(pytestconfig: pytest.Config, tmp_path: Path, part: int) -> None:
    steps = pytestconfig.getoption("--machine-steps") or 25_000
    run(tmp_path / "machine", SEED + part * _SEEDS_PER_TEST, steps)


def test_each_planted_fault_has_its_text_in_the_broker() -> None:
    assert [f"{each.fault}: {each.problem}" for each in mutants() if each.problem] == []
