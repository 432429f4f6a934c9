"""The runner: `make fuzz` plays every part at length, `make fuzz ARGS="decoders --seed 7"` one of them."""

from __future__ import annotations

import argparse
import sys
import time

from fuzz.parts import PARTS
from support.chance import SEED


def main() -> int:
    """Play the parts, and return how many of them found something."""
    parser = argparse.ArgumentParser(prog="make fuzz", description="Play hostile input against servers and decoders.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; all without it")
    parser.add_argument("--seed", type=int, default=SEED, help="repeats the choices of an earlier run")
    parser.add_argument("--amount", type=int, help="how many inputs, calls or cases, instead of the usual number")
    parser.add_argument("--only", default="", help="only what has this text in its name, such as one decoder")
    given = parser.parse_args()
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}: they are {', '.join(PARTS)}")
    broken = 0
    for name in given.parts or PARTS:
        part = PARTS[name]
        amount = part.amount if given.amount is None else given.amount
        print(f"{name}: {amount:,} {part.unit}, --seed {given.seed}", flush=True)
        begun = time.monotonic()
        findings = part.play(given.seed, amount, given.only)
        for finding in findings:
            print(f"  {finding}")
        print(f"{name}: {len(findings)} findings in {time.monotonic() - begun:.0f} s", flush=True)
        broken += bool(findings)
    return broken


if __name__ == "__main__":
    sys.exit(main())
