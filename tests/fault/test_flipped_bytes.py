"""A byte of a data directory changes: `check`, the start or a reader finds it, or all messages are as they were."""

from __future__ import annotations

from collections import Counter

import pytest

from fuzz import files
from support.chance import SEED

PLACES = 4096


@pytest.mark.timeout(3000)  # two minutes on a machine that does nothing else
def test_a_byte_in_each_of_many_places() -> None:
    found = files.flip_bytes(SEED, PLACES)
    counts = Counter(outcome for outcome in found if outcome in files.OUTCOMES)
    print(f"seed {SEED}, {PLACES} places: {dict(counts)}")
    assert [outcome for outcome in found if outcome not in files.OUTCOMES] == [], f"seed {SEED}"
    assert counts.total() == PLACES
    assert all(counts[outcome] for outcome in files.OUTCOMES)
