"""For how long a broker is left out after an answer that took long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq.sending.latency_table import DEFAULT_LATENCY_TABLE, latency_table
from minimq_common.errors import InvalidArgument

NAMES = ["5.1.4", "4.x"]


@pytest.mark.parametrize(
    ("latencies_ms", "new_ms", "old_ms"),
    [
        ((0, 49, 50, 99, 100, 549), 0, 0),
        ((550, 999), 2_000, 30_000),
        ((1_000, 1_799), 2_000, 60_000),
        ((1_800, 1_999), 5_000, 60_000),
        ((2_000, 2_999), 5_000, 120_000),
        ((3_000, 4_999), 6_000, 180_000),
        ((5_000, 9_999, 14_999), 10_000, 180_000),
        ((15_000, 30_000), 30_000, 600_000),
    ],
)
def test_the_last_step_that_is_reached_counts(latencies_ms: tuple[int, ...], new_ms: int, old_ms: int) -> None:
    for latency_ms in latencies_ms:
        assert latency_table("5.1.4").out_s(latency_ms / 1000) == new_ms / 1000, latency_ms
        assert latency_table("4.x").out_s(latency_ms / 1000) == old_ms / 1000, latency_ms


@pytest.mark.parametrize(("name", "seconds"), [("5.1.4", 10.0), ("4.x", 600.0)])
def test_an_error_counts_as_a_long_latency(name: str, seconds: float) -> None:
    assert latency_table(name).isolation_s == seconds


def test_the_newer_table_is_the_default() -> None:
    assert latency_table() is latency_table(DEFAULT_LATENCY_TABLE) is latency_table("5.1.4")


def test_an_unknown_name_is_refused_with_the_choices() -> None:
    with pytest.raises(InvalidArgument, match=r"no latency table '6': there are 5\.1\.4, 4\.x"):
        latency_table("6")


@pytest.mark.parametrize("name", NAMES)
@given(latencies=st.lists(st.floats(0, 60), min_size=2, max_size=2))
def test_a_longer_latency_never_costs_less(name: str, latencies: list[float]) -> None:
    quick, slow = sorted(latencies)
    assert latency_table(name).out_s(quick) <= latency_table(name).out_s(slow)
