"""The common tests of FastStream's own brokers, from a checkout of FastStream that `make test-faults` clones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

SHARED = Path(__file__).with_name("shared")
CHECKOUT = Path(os.environ.get("FASTSTREAM_TESTS") or f".venv/faststream-{metadata.version('faststream')}").resolve()
#: How many there are in FastStream 0.7.
MIN_PASSED = 500


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not CHECKOUT.exists(), reason=f"no checkout of FastStream, whose tests these are, in {CHECKOUT}")
def test_the_common_tests_of_faststream_pass() -> None:
    # With rules of their own: warnings are no errors there, and coroutines are tests.
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", SHARED / "pytest.ini"),
            *("--rootdir", SHARED, "--confcutdir", SHARED, SHARED / "testcases.py"),
        ],
        cwd=SHARED,
        env={**os.environ, "FASTSTREAM_TESTS": str(CHECKOUT), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout[-5_000:]
    [(passed,)] = [found.groups() for found in re.finditer(r"(\d+) passed", run.stdout)]
    assert int(passed) >= MIN_PASSED
