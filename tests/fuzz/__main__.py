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
    parser.add_argument("--first", type=int, default=0, help="go on at this number, which an earlier run has printed")
    parser.add_argument("--only", default="", help="only what has this text in its name, such as one decoder")
    given = parser.parse_args()
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}: they are {', '.join(PARTS)}")
    if given.first and len(given.parts) != 1:
        parser.error("--first needs the part that it is a number of")
    return sum(_play(name, given) > 0 for name in given.parts or PARTS)


def _play(name: str, given: argparse.Namespace) -> int:
    """Play a part, slice after slice, and return the number of findings."""
    part = PARTS[name]
    end = part.amount if given.amount is None else given.first + given.amount
    print(f"{name}: {part.unit} {given.first:,} to {end:,}, --seed {given.seed}", flush=True)
    begun, found = time.monotonic(), 0
    for first in range(given.first, end, part.slice):
        following = min(first + part.slice, end)
        findings = part.play(given.seed, following - first, given.only, first)
        found += len(findings)
        for finding in findings:
            print(f"  {finding}")
        if following < end:
            print(f"{name}: {following:,} of {end:,}, {found} findings; go on with --first {following}", flush=True)
    print(f"{name}: {found} findings in {time.monotonic() - begun:.0f} s", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
