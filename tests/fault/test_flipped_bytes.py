"""A byte of a data directory changes: `check`, the start or a reader finds it, or all messages are as they were."""

from __future__ import annotations

from collections import Counter

import pytest

from fuzz import files
from support.chance import SEED, rounds

#: `make test-long` takes 5,120.
PLACES = 256 * rounds(2)


@pytest.mark.rounds
@pytest.mark.timeout(3000)
def test_a_byte_in_each_of_many_places() -> None:
    found = files.flip_bytes(SEED, PLACES)
    counts = Counter(outcome for outcome in found if outcome in files.OUTCOMES)
    print(f"seed {SEED}, {PLACES} places: {dict(counts)}")
    assert [outcome for outcome in found if outcome not in files.OUTCOMES] == [], f"seed {SEED}"
    assert counts.total() == PLACES
    assert all(counts[outcome] for outcome in files.OUTCOMES)
