from __future__ import annotations

import math

from minimq_common.serving.histogram import Histogram


def test_a_value_counts_in_its_class_and_all_above() -> None:
    values = Histogram([1, 10])
    assert values.cumulative() == [(1, 0), (10, 0), (math.inf, 0)]
    for value in (0, 1, 1.5, 10, 11, 4):
        values.add(value)
    assert values.cumulative() == [(1, 2), (10, 5), (math.inf, 6)]
    assert values.total == 27.5
