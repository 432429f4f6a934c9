"""Run the tests marked `fault` or `slow` in two workers, and repeat failed tests once, in one process.

    .venv/bin/python scripts/test_faults.py [PYTEST ARGUMENTS]

A test that passes alone, or in another worker after its own crashed, is reported as flaky. The run fails if a test
fails twice, or if more than three are flaky.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

MARKS = "(fault or slow) and not long"
MAX_FLAKY = 3
#: More failures than this have a common cause: repeating them is useless.
MAX_REPEATED = 20
CACHE = Path(".pytest_cache/faults")
FAILED = 1  # pytest's exit status if tests failed


def run_pytest(*arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", "-m", MARKS, "-o", f"cache_dir={CACHE}", *arguments]
    return subprocess.run(command, check=False).returncode


def failed_tests() -> list[str]:
    """Return the ids of the tests that failed in the last run."""
    record = CACHE / "v/cache/lastfailed"
    return sorted(json.loads(record.read_text())) if record.exists() else []


def main(arguments: list[str]) -> int:
    workers = os.environ.get("WORKERS", "2")
    status = run_pytest("-n", workers, "--no-loadscope-reorder", "--cache-clear", *arguments)
    failed = failed_tests()
    if status == FAILED and not failed:
        print("\n---- a worker crashed, as shown above; another one repeated its test, which passed")
        return 0
    if status != FAILED or len(failed) > MAX_REPEATED:
        return status
    print(f"\n---- {len(failed)} failed, and run again, alone")
    status = run_pytest("-n", "0", "--last-failed", *arguments)
    still = failed_tests()
    flaky = [test for test in failed if test not in still]
    print(f"---- flaky tests, which failed and passed alone: {len(flaky)} of at most {MAX_FLAKY}", *flaky, sep="\n  ")
    return status or int(len(flaky) > MAX_FLAKY)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
