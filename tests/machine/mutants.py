"""Show that the store machine finds each planted fault: python -m machine.mutants [--steps N] [WORD...].

Each fault of `mutants.toml` is put into a copy of the broker, and the machine runs with this copy until it fails. If
the text of a fault is no longer in its file, or there more than once, that is an error: adapt it to the changed code.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from machine.machine import EPISODE

HERE = Path(__file__).parent
BROKER = HERE.parents[1] / "broker" / "minimq_broker"
#: A fault may let the machine hang.
_TIMEOUT_S = 1_800.0
#: What `make test` plays, and `make test-faults`. The second one is the budget in which each fault is to be found.
QUICK, BUDGET = 2_000, 100_000


class Mutant(NamedTuple):
    part: str
    fault: str
    file: str
    old: str
    new: str

    @property
    def problem(self) -> str | None:
        """Why it cannot be applied to the broker, None if it can."""
        path = BROKER / self.file
        count = path.read_text().count(self.old) if path.is_file() else 0
        return None if count == 1 else f"its text is {count} times in {self.file}"


def mutants() -> list[Mutant]:
    listed = tomllib.loads((HERE / "mutants.toml").read_text())["mutant"]
    return [Mutant(**each) for each in listed]


def play(mutant: Mutant, seed: int, steps: int) -> tuple[int | None, str]:
    """Run the machine on a broker with a fault; return how many steps went well until it was found, and how."""
    with tempfile.TemporaryDirectory() as folder:
        broker = Path(folder) / "minimq_broker"
        shutil.copytree(BROKER, broker, ignore=shutil.ignore_patterns("__pycache__"))
        path = broker / mutant.file
        path.write_text(path.read_text().replace(mutant.old, mutant.new))
        environment = {**os.environ, "PYTHONPATH": f"{folder}:{HERE.parent}"}
        command = [sys.executable, "-m", "machine", "--seed", str(seed), "--steps", str(steps), "--shrink-s", "0"]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return 0, "it hangs"
    if done.returncode == 0:
        return None, "NOT FOUND"
    found = re.match(r"seed (\d+), (\d+) steps: (.{0,90})", done.stdout)
    if found is None:
        return None, f"the machine could not run: {done.stderr.strip()[-300:]}"
    return (int(found[1]) - seed) * EPISODE, f"seed {found[1]}: {found[3]}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="machine.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only those with one of these words in part or fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=BUDGET, help="of each fault at most")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    chosen = [
        each
        for each in mutants()
        if not given.words or any(word in f"{each.part}: {each.fault}" for word in given.words)
    ]
    if broken := [f"{each.part}: {each.fault}: {each.problem}" for each in chosen if each.problem]:
        print("these no longer apply:", *broken, sep="\n  ")
        return 2
    found: list[int] = []
    with ThreadPoolExecutor(given.processes) as pool:
        results = pool.map(lambda each: play(each, given.seed, given.steps), chosen)
        for mutant, (steps, text) in zip(chosen, results, strict=True):
            found += [] if steps is None else [steps]
            print(f"{mutant.part}: {mutant.fault}: {text}", flush=True)
    quick = sum(steps < QUICK for steps in found)
    print(f"found {len(found)} of {len(chosen)} within {given.steps} steps, {quick} of them within {QUICK}")
    return int(len(found) < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
