"""Some thousand hostile inputs for each decoder; `make fuzz` plays millions."""

from __future__ import annotations

from random import Random

import pytest

from fuzz import decoders
from fuzz.target import Target
from support.chance import SEED

#: Small, so that `make test` stays short: what is found by more is kept as a test of its own.
AMOUNT = 20_000


@pytest.mark.timeout(300)
def test_decoders_raise_only_what_they_document() -> None:
    assert decoders.play(SEED, AMOUNT) == []


def test_an_error_that_is_not_documented_is_found() -> None:
    target = Target("x", Random.random, lambda given: 1 / (given - given), ())

    problem = decoders.problem_of(target, 0.5)

    assert problem is not None
    assert problem.startswith("ZeroDivisionError at test_decoders.py:")
