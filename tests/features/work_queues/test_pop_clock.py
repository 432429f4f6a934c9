"""The time by which messages come again: not even a part of a millisecond too early."""

from __future__ import annotations

import random

import pytest

from minimq_broker.features.work_queues import clock as pop_clock
from minimq_broker.features.work_queues.clock import PopClock
from support.chance import SEED


class Instant:
    """Clocks of a machine that stand still until they are moved, in ns."""

    def __init__(self) -> None:
        self.day_ns, self.steady_ns = 1_700_000_000_123_456_789, 987_654_321

    def time_ns(self) -> int:
        return self.day_ns

    def monotonic_ns(self) -> int:
        return self.steady_ns


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> Instant:
    made = Instant()
    monkeypatch.setattr(pop_clock, "time", made)
    return made


def test_a_duration_is_over_when_all_of_it_is(instant: Instant) -> None:
    chance, clock = random.Random(SEED), PopClock()
    for _ in range(1_000):
        instant.steady_ns += chance.randrange(3_000_000)
        until_ms, began = clock.after_ms(5), instant.steady_ns
        while clock.now_ms() < until_ms:
            instant.steady_ns += chance.randrange(200_000)
        assert 5_000_000 <= instant.steady_ns - began < 6_200_000


def test_a_clock_that_is_set_changes_nothing_until_the_next_begin(instant: Instant) -> None:
    clock = PopClock()
    before = clock.now_ms()
    instant.day_ns += 3_600_000_000_000
    assert clock.now_ms() == before
    assert PopClock().now_ms() == before + 3_600_000
    instant.day_ns -= 7_200_000_000_000
    assert PopClock(before).now_ms() == before, "it goes back behind what the log says"
