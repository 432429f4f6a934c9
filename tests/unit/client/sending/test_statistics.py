"""Counters and latencies of a producer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq.sending.statistics import BOUNDS_S, SendCounters


def test_counts_add_up() -> None:
    counters = SendCounters()
    counters.acknowledged(10, 1000, 0.001, already_stored=False)
    counters.acknowledged(5, 500, 0.002, already_stored=True)
    counters.failed += 2
    counters.retries += 1
    told = counters.snapshot((7, 70), ())
    assert (told.acknowledged, told.failed, told.batches, told.bytes, told.retries) == (15, 2, 2, 1500, 1)
    assert (told.already_stored, told.buffered_messages, told.buffered_bytes, told.avoided) == (1, 7, 70, ())
    assert told.latency.count == 15
    assert told.latency.mean_s == pytest.approx((10 * 0.001 + 5 * 0.002) / 15)


def test_without_messages_there_is_no_latency() -> None:
    latency = SendCounters().snapshot((0, 0), ()).latency
    assert (latency.count, latency.mean_s, latency.quantile_s(0.5), latency.quantile_s(1.0)) == (0, 0.0, 0.0, 0.0)


@given(st.lists(st.floats(0, BOUNDS_S[-1]), min_size=1), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_a_quantile_is_at_most_an_eighth_too_long(latencies: list[float], share: float) -> None:
    counters = SendCounters()
    for latency in latencies:
        counters.acknowledged(1, 1, latency, already_stored=False)
    exact = sorted(latencies)[max(-(-int(share * 1000) * len(latencies) // 1000) - 1, 0)]
    told = counters.snapshot((0, 0), ()).latency.quantile_s(share)
    assert exact <= told <= max(1.125 * exact, BOUNDS_S[0])
