"""Play the machine: python -m machine [--seed N] [--steps N]."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

from machine.machine import Failure, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="machine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--shrink-s", type=float, default=60.0)
    given = parser.parse_args()
    logging.disable()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        began = time.monotonic()
        try:
            done = run(Path(folder) / "machine", given.seed, given.steps, shrink_s=given.shrink_s)
        except Failure as failure:
            print(failure)
            return 1
    print(f"{done} steps, {done / (time.monotonic() - began):.0f} per second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
