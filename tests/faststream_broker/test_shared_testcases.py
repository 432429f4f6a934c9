"""The tests that all brokers of FastStream pass, from a checkout of FastStream: `make faststream-tests`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SHARED = Path(__file__).with_name("shared")
CHECKOUT = os.environ.get("FASTSTREAM_TESTS", "")
#: How many there are in FastStream 0.7.
LEAST = 250


@pytest.mark.timeout(600)
@pytest.mark.skipif(not CHECKOUT, reason="FASTSTREAM_TESTS names no checkout of FastStream, whose tests these are")
def test_the_common_tests_of_faststream_pass() -> None:
    # With rules of their own: warnings are no errors there, and coroutines are tests.
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", SHARED / "pytest.ini"),
            *("--rootdir", SHARED, "--confcutdir", SHARED, SHARED / "testcases.py"),
        ],
        cwd=SHARED,
        env={**os.environ, "FASTSTREAM_TESTS": str(Path(CHECKOUT).resolve()), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout[-5_000:]
    [(passed,)] = [found.groups() for found in re.finditer(r"(\d+) passed", run.stdout)]
    assert int(passed) >= LEAST
    print(f"\n{passed} of FastStream's common tests pass")
