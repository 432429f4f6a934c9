"""The time by which old data is deleted, whatever is done to the clock of the machine."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minimq_broker.log.clock import FILE_NAME, DeletionClock

DAY_S = 24 * 3600.0
DAY_MS = 24 * 3600 * 1000
NOW = 1_700_000_000_000


class Machine:
    """Its clocks, as a test sets them."""

    def __init__(self, path: Path, newest_ms: Callable[[], int | None] = lambda: None) -> None:
        self.path = path / FILE_NAME
        self.newest_ms = newest_ms
        self.clock_ms = NOW
        self.steady_s = 1000.0

    def pass_s(self, seconds: float) -> None:
        self.clock_ms += round(1000 * seconds)
        self.steady_s += seconds

    def start(self) -> DeletionClock:
        return DeletionClock(
            self.path,
            lambda: self.newest_ms(),  # noqa: PLW0108 - tests change it
            clock_ms=lambda: self.clock_ms,
            steady_s=lambda: self.steady_s,
        )


def test_a_clock_that_jumps_ahead_deletes_nothing_until_it_returns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(tmp_path, lambda: NOW)
    clock = machine.start()
    assert clock.now_ms() == NOW
    machine.clock_ms += 10 * DAY_MS
    machine.newest_ms = lambda: NOW + 10 * DAY_MS  # messages come with the time of the clock
    for _ in range(23):
        assert clock.kept_ms() == machine.clock_ms - 10 * DAY_MS
        assert clock.ahead_s == 10 * DAY_S
        machine.pass_s(3600)
    [record] = caplog.records
    assert "ahead_s=864000" in record.getMessage()
    machine.clock_ms -= 10 * DAY_MS
    assert clock.now_ms() == machine.clock_ms
    assert clock.ahead_s == 0
    assert "followed again" in caplog.text


def test_a_clock_that_stays_ahead_for_a_day_is_believed(tmp_path: Path) -> None:
    machine = Machine(tmp_path, lambda: NOW)
    clock = machine.start()
    clock.now_ms()
    machine.clock_ms += 10 * DAY_MS  # a machine that was suspended
    assert clock.now_ms() == NOW
    machine.pass_s(DAY_S - 1)
    machine.clock_ms += 5 * DAY_MS  # the day begins again
    assert clock.now_ms() == machine.clock_ms - 15 * DAY_MS
    machine.pass_s(DAY_S - 1)
    assert clock.now_ms() == machine.clock_ms - 15 * DAY_MS
    machine.pass_s(1)
    assert clock.now_ms() == machine.clock_ms
    assert clock.ahead_s == 0


def test_a_clean_stop_is_not_a_jump(tmp_path: Path) -> None:
    machine = Machine(tmp_path, lambda: NOW)
    clock = machine.start()
    clock.kept_ms()
    clock.stop()
    machine.pass_s(10 * DAY_S)
    clock = machine.start()
    assert clock.kept_ms() == machine.clock_ms
    machine.clock_ms += 10 * DAY_MS
    assert clock.kept_ms() == machine.clock_ms - 10 * DAY_MS
    for _ in range(2):  # stopping does not confirm a jump
        clock.stop()
        clock = machine.start()
        assert clock.kept_ms() == machine.clock_ms - 10 * DAY_MS


def test_a_jump_is_known_after_a_start(tmp_path: Path) -> None:
    machine = Machine(tmp_path, lambda: NOW)
    machine.start().kept_ms()
    machine.newest_ms = lambda: machine.clock_ms
    machine.clock_ms += 10 * DAY_MS
    for _ in range(2):
        assert machine.start().kept_ms() == NOW


@pytest.mark.parametrize("text", [None, "", "x", "1 2"])
def test_without_a_saved_time_the_newest_message_counts(tmp_path: Path, text: str | None) -> None:
    machine = Machine(tmp_path, lambda: NOW - 2 * DAY_MS)
    if text is not None:
        machine.path.write_text(text)
    clock = machine.start()
    assert clock.kept_ms() == NOW - 2 * DAY_MS
    assert clock.ahead_s == 2 * DAY_S
    machine.newest_ms = lambda: None
    machine.path.unlink()
    assert machine.start().kept_ms() == NOW


def test_a_clock_that_goes_back_and_returns_is_no_jump(tmp_path: Path) -> None:
    machine = Machine(tmp_path, lambda: NOW)
    clock = machine.start()
    clock.now_ms()
    machine.clock_ms -= 10 * DAY_MS
    assert clock.now_ms() == machine.clock_ms
    machine.clock_ms += 10 * DAY_MS
    assert clock.now_ms() == machine.clock_ms
    assert clock.ahead_s == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.floats(0, 3600), st.integers(-(10**12), 10**12)), max_size=20))
def test_time_never_goes_ahead_by_more_than_a_jump_that_is_allowed(
    tmp_path: Path, steps: list[tuple[float, int]]
) -> None:
    machine = Machine(tmp_path, lambda: NOW)
    machine.path.unlink(missing_ok=True)
    clock = machine.start()
    told = [(machine.steady_s, clock.now_ms())]
    highest = told[0][1]
    for passed_s, jump_ms in steps:
        machine.pass_s(passed_s)
        machine.clock_ms += jump_ms
        told.append((machine.steady_s, clock.now_ms()))
        assert told[-1][1] <= machine.clock_ms
    for (before_s, _), (after_s, after_ms) in pairwise(told):
        highest += round(1000 * (after_s - before_s)) + DAY_MS + 1
        assert after_ms <= highest
