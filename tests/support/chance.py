"""The seed and the rounds of tests that choose at random: fixed ones, unless the environment names others."""

from __future__ import annotations

import os
import random

#: Names the seed, or "random" for one that no run had before.
SEED_VARIABLE = "MINIMQ_TEST_SEED"
#: Whether the environment names a seed.
IS_SEED_GIVEN = SEED_VARIABLE in os.environ


def _seed() -> int:
    """Return the seed of this run, and leave a random one to the processes of a parallel run."""
    given = os.environ.get(SEED_VARIABLE, "1")
    if given == "random":
        given = os.environ[SEED_VARIABLE] = str(random.SystemRandom().randrange(1 << 32))
    return int(given)


#: Repeats the choices of an earlier run, which printed it.
SEED = _seed()


def rounds(usual: int) -> int:
    """Return how often a test repeats its faults; `make test-long` sets MINIMQ_TEST_ROUNDS for many."""
    return int(os.environ.get("MINIMQ_TEST_ROUNDS", usual))
