"""The time by which old data is deleted, whatever is done to the clock of the machine."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq_broker.core.clock_doubt import TOLERANCE_MS, ClockDoubt, ClockReading
from minimq_broker.services.deletion_clock import DeletionClock
from minimq_broker.store.clock_record import FILE_NAME, ClockRecord, load

DAY_S = 24 * 3600.0
DAY_MS = 24 * 3600 * 1000
NOW = 1_700_000_000_000
HOLD_S = DAY_S


def read(doubt: ClockDoubt, clock_ms: int, steady_s: float, newest_ms: int | None = None) -> int:
    return doubt.read(ClockReading(clock_ms, steady_s, newest_ms))


def test_a_clock_that_goes_on_is_believed() -> None:
    doubt = ClockDoubt(HOLD_S)
    assert read(doubt, NOW, 0.0, NOW - 5) == NOW
    for passed_s in (10, 3600, 10 * 24 * 3600):  # nobody sends for ten days
        assert read(doubt, NOW + 1000 * passed_s, float(passed_s), NOW - 5) == NOW + 1000 * passed_s
    assert doubt.ahead_ms == 0


def test_small_corrections_are_believed() -> None:
    doubt = ClockDoubt(HOLD_S, NOW)
    assert read(doubt, NOW + TOLERANCE_MS, 0.0) == NOW + TOLERANCE_MS
    assert read(doubt, NOW, 1.0) == NOW
    assert (doubt.ahead_ms, doubt.went_back_ms) == (0, TOLERANCE_MS + 1000)
    assert read(doubt, NOW + 1000, 2.0) == NOW + 1000
    assert doubt.went_back_ms == 0


def test_a_clock_that_jumps_ahead_is_held_and_believed_once_it_has_stayed_so() -> None:
    doubt = ClockDoubt(HOLD_S, NOW)
    read(doubt, NOW, 0.0)
    ahead = NOW + 10 * DAY_MS
    assert read(doubt, ahead + 10_000, 10.0) == NOW + 10_000
    assert (doubt.ahead_ms, doubt.believed_at_s) == (10 * DAY_MS, 10.0 + HOLD_S)
    assert read(doubt, ahead + DAY_MS, DAY_S) == NOW + DAY_MS  # what is a day older meanwhile goes
    assert doubt.believed_at_s == 10.0 + HOLD_S
    assert read(doubt, ahead + DAY_MS + 10_000, DAY_S + 10) == ahead + DAY_MS + 10_000
    assert doubt.ahead_ms == 0


def test_another_jump_begins_the_wait_anew() -> None:
    doubt = ClockDoubt(HOLD_S, NOW)
    read(doubt, NOW + 10 * DAY_MS, 0.0)
    read(doubt, NOW + 20 * DAY_MS, 100.0)
    assert (doubt.ahead_ms, doubt.believed_at_s) == (20 * DAY_MS - 100_000, 100.0 + HOLD_S)


def test_a_clock_that_is_set_right_leaves_nothing_behind() -> None:
    doubt = ClockDoubt(HOLD_S, NOW)
    read(doubt, NOW + 10 * DAY_MS, 0.0)
    assert read(doubt, NOW + 60_000, 60.0) == NOW + 60_000
    assert doubt.ahead_ms == 0


def test_a_clock_that_goes_back_is_believed_and_its_return_is_held() -> None:
    """It deletes less that way, whichever of the two times is wrong."""
    doubt = ClockDoubt(HOLD_S, NOW)
    read(doubt, NOW, 0.0)
    assert read(doubt, NOW - 10 * DAY_MS, 10.0) == NOW - 10 * DAY_MS
    assert doubt.went_back_ms == 10 * DAY_MS + 10_000
    assert read(doubt, NOW + 20_000, 20.0) == NOW - 10 * DAY_MS + 10_000
    assert doubt.ahead_ms == 10 * DAY_MS + 10_000


def test_a_machine_that_was_off_deletes_when_it_has_run_for_a_while() -> None:
    """It is told by the newest message only: an older release has kept no time, or the directory was restored."""
    doubt = ClockDoubt(HOLD_S)
    assert read(doubt, NOW, 0.0, NOW - 10 * DAY_MS) == NOW - 10 * DAY_MS
    assert read(doubt, NOW + DAY_MS, DAY_S, NOW - 10 * DAY_MS) == NOW + DAY_MS


def test_a_replica_whose_clock_was_always_ahead_goes_by_the_messages_of_its_master() -> None:
    doubt = ClockDoubt(HOLD_S)
    assert read(doubt, NOW + 10 * DAY_MS, 0.0) == NOW + 10 * DAY_MS  # there is nothing to delete yet
    assert read(doubt, NOW + 10 * DAY_MS + 1000, 1.0, NOW) == NOW


def test_a_wait_of_nothing_believes_at_once() -> None:
    assert read(ClockDoubt(0.0, NOW), NOW + 10 * DAY_MS, 0.0) == NOW + 10 * DAY_MS


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(-20 * DAY_MS, 20 * DAY_MS)), max_size=40))
def test_it_is_never_later_than_the_clock_and_goes_ahead_no_faster_than_time_unless_it_waited(
    steps: list[tuple[int, int]],
) -> None:
    doubt = ClockDoubt(HOLD_S, NOW)
    steady_s = 0.0
    told = [(0.0, NOW)]
    for passed_s, jump_ms in steps:
        steady_s += passed_s
        clock_ms = NOW + round(1000 * steady_s) + jump_ms
        time_ms = read(doubt, clock_ms, steady_s)
        assert time_ms <= clock_ms
        told.append((steady_s, time_ms))
    for (before_s, before_ms), (after_s, after_ms) in pairwise(told):
        if after_s - before_s < HOLD_S and steady_s < HOLD_S:
            assert after_ms - before_ms <= 1000 * (after_s - before_s) + TOLERANCE_MS


# ---- read and kept ------------------------------------------------------------------------------


class Machine:
    """Its clocks, as a test sets them."""

    def __init__(self, path: Path, newest_ms: Callable[[], int | None] = lambda: None) -> None:
        self.path = path / FILE_NAME
        self.newest_ms = newest_ms
        self.clock_ms = NOW
        self.steady_s = 1000.0
        self.boot_id = "boot-1"

    def pass_s(self, seconds: float) -> None:
        self.clock_ms += round(1000 * seconds)
        self.steady_s += seconds

    def start(self, hold_s: float = HOLD_S) -> DeletionClock:
        return DeletionClock(
            self.path,
            hold_s,
            self.newest_ms,
            clock_ms=lambda: self.clock_ms,
            steady_s=lambda: self.steady_s,
            boot_id=self.boot_id,
        )


def test_a_start_goes_on_with_the_time_that_was_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(tmp_path, lambda: NOW - 5 * DAY_MS)  # an idle broker
    machine.start(0.0).kept_ms()
    machine.pass_s(2 * DAY_S)  # it is down, and the machine runs
    assert machine.start().kept_ms() == machine.clock_ms
    assert not caplog.records
    machine.clock_ms += 10 * DAY_MS
    clock = machine.start()
    assert clock.now_ms() == machine.clock_ms - 10 * DAY_MS
    assert clock.ahead_s == 10 * DAY_S
    [record] = caplog.records
    assert "ahead_s=864000 wait_s=86400" in record.getMessage()
    assert "--clock-hold 0" in record.getMessage()
    machine.pass_s(10.0)
    clock.now_ms()
    assert len(caplog.records) == 1
    machine.clock_ms -= 10 * DAY_MS
    assert clock.now_ms() == machine.clock_ms
    assert [record.getMessage() for record in caplog.records[1:]] == [
        "clock: it is trusted again for the deletion of old data"
    ]


def test_a_machine_that_was_off_is_as_old_as_it_was(tmp_path: Path) -> None:
    machine = Machine(tmp_path, lambda: NOW - 5 * DAY_MS)
    machine.start(0.0).kept_ms()
    machine.clock_ms += 10 * DAY_MS
    machine.steady_s, machine.boot_id = 5.0, "boot-2"
    clock = machine.start()
    assert clock.kept_ms() == NOW
    for _ in range(3):  # it is off each night, and what it has run for counts
        machine.pass_s(DAY_S / 3)
        kept = clock.kept_ms()
        machine.clock_ms += DAY_MS
        machine.steady_s, machine.boot_id = 5.0, machine.boot_id + "x"
        clock = machine.start()
        assert clock.kept_ms() == kept
    assert clock.now_ms() == NOW + DAY_MS


@pytest.mark.parametrize("idle_ms", [130_000, DAY_MS])
def test_a_copy_or_an_idle_broker_without_a_record_is_not_suspected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, idle_ms: int
) -> None:
    machine = Machine(tmp_path, lambda: NOW - idle_ms)
    clock = machine.start()
    assert clock.kept_ms() == NOW - idle_ms  # nothing is deleted by it nevertheless
    machine.pass_s(3600.0)
    clock = machine.start()  # again, with a record
    assert clock.kept_ms() == machine.clock_ms - idle_ms
    assert clock.ahead_s == 0
    machine.pass_s(DAY_S)
    assert clock.kept_ms() == machine.clock_ms
    assert not caplog.records
    machine.start().now_ms()
    machine.clock_ms += 2 * idle_ms
    clock.now_ms()
    assert "it has jumped ahead" in caplog.text


def test_a_clock_that_jumps_while_an_idle_time_is_held_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(tmp_path, lambda: NOW - 3_600_000)
    clock = machine.start()
    clock.now_ms()
    machine.clock_ms += 130_000
    assert clock.now_ms() == NOW - 3_600_000
    assert clock.ahead_s == 3730
    [record] = caplog.records
    assert record.getMessage().startswith("clock: it has jumped ahead")
    assert "ahead_s=3730 wait_s=86400" in record.getMessage()


def test_without_a_record_of_the_time_no_jump_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(tmp_path, lambda: NOW - DAY_MS - 1)
    machine.start().kept_ms()
    [record] = caplog.records
    assert record.getMessage().startswith(
        "clock: there was no record of the time, and it is ahead of the newest message"
    )
    assert "jumped" not in caplog.text


@pytest.mark.parametrize("text", ["", "x", "1 2 3 4", "1700000000000 5.0 boot-1 00000000", "\xff" * 20])
def test_a_damaged_file_is_named_and_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str) -> None:
    machine = Machine(tmp_path, lambda: NOW - DAY_MS)
    machine.path.write_text(text)
    clock = machine.start()
    assert clock.kept_ms() == NOW - DAY_MS
    assert f"goes by the newest message: {machine.path}, which says what time it was, " in caplog.text
    assert machine.start().now_ms() == NOW - DAY_MS  # it is good again


def test_a_record_of_an_older_release_is_read(tmp_path: Path) -> None:
    text = "1700000000000 5.000 boot-1"
    path = tmp_path / FILE_NAME
    path.write_text(f"{text} {google_crc32c.value(text.encode()):08x}")
    assert load(path) == ClockRecord(1_700_000_000_000, 5.0, "boot-1", 0)


def test_a_clock_that_goes_back_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(tmp_path)
    machine.newest_ms = lambda: NOW
    clock = machine.start()
    clock.now_ms()
    machine.clock_ms -= DAY_MS
    assert clock.now_ms() == machine.clock_ms
    assert "seconds=86400" in caplog.text


def test_a_directory_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "gone", lambda: NOW)
    assert machine.start().kept_ms() == NOW
