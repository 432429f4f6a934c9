"""Some thousand hostile inputs for each decoder; `make fuzz` plays millions."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from fuzz import decoders
from fuzz.target import Target
from fuzz.targets import TARGETS
from support.chance import SEED

#: Small, so that `make test` stays short: what is found by more is kept as a test of its own.
AMOUNT = 20_000


@pytest.mark.timeout(300)
def test_decoders_raise_only_what_they_document() -> None:
    assert decoders.play(SEED, AMOUNT) == []


def test_a_run_in_slices_plays_what_one_run_plays() -> None:
    edges = [0, 1, 700, 1000, 25_000, 99_999, 100_000]
    slices = [decoders.shares(TARGETS, range(*each)) for each in pairwise(edges)]
    for target, whole in enumerate(decoders.shares(TARGETS, range(100_000))):
        assert [number for each in slices for number in each[target]] == list(whole)


def test_an_error_that_is_not_documented_is_found() -> None:
    target = Target("x", Random.random, lambda given: 1 / (given - given), ())

    problem = decoders.problem_of(target, 0.5)

    assert problem is not None
    assert problem.startswith("ZeroDivisionError at test_decoders.py:")
