"""Memory and start of a store do not depend on how many batches wait in it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "bench" / "delay_store.py"
#: More than this moves without a reason; one byte kept for each of those that wait would not show, twenty would.
ALLOWED_MIB = 16


@pytest.mark.parametrize(
    "count", [100_000, pytest.param(10_000_000, marks=[pytest.mark.long, pytest.mark.timeout(3_600)])]
)
def test_memory_and_start_do_not_depend_on_how_many_wait(tmp_path: Path, count: int) -> None:
    command = [sys.executable, str(SCRIPT), f"--waiting={count}", f"--folder={tmp_path}"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = re.findall(r"^ *([\d,]+) +(\d+) MiB", printed, re.M)
    found = [(int(waiting.replace(",", "")), int(mib)) for waiting, mib in lines]
    assert [waiting for waiting, _ in found] == list(range(0, count + 1, count // 5)), printed
    memory = [mib for _, mib in found]
    assert max(memory[1:]) - memory[1] < ALLOWED_MIB, printed
