from __future__ import annotations

import logging

import pytest

from minimq_common.retry_log import RetryLog

log = logging.getLogger(__name__)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outage(clock: Clock, caplog: pytest.LogCaptureFixture) -> RetryLog:
    caplog.set_level(logging.DEBUG, logger=__name__)  # what clients of other tests log meanwhile is not looked at
    return RetryLog(log, clock)


def test_an_outage_is_a_line_at_its_beginning_one_a_minute_and_one_at_its_end(
    outage: RetryLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    assert not outage.worked("back name=%s", "a")
    for _ in range(301):  # 150 s, two tries a second
        outage.failed("gone name=%s", "a")
        clock.now += 0.5
    assert outage.worked("back name=%s", "a")
    assert not outage.worked("back name=%s", "a")
    assert caplog.messages == [
        "gone name=a",
        "gone name=a failures=121 outage_s=60.0",
        "gone name=a failures=241 outage_s=120.0",
        "back name=a failures=301 outage_s=150.5",
    ]


def test_another_reason_is_told_of_at_once_and_the_end_is_as_grave_as_the_gravest(
    outage: RetryLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for kind, level in (
        ("full", logging.INFO),
        ("gone", logging.ERROR),
        ("full", logging.INFO),
        ("gone", logging.INFO),
    ):
        outage.failed("not stored reason=%s", kind, kind=kind, level=level)
        clock.now += 1
    outage.worked("stored")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "not stored reason=full"),
        ("ERROR", "not stored reason=gone failures=2 outage_s=1.0"),
        ("ERROR", "stored failures=4 outage_s=4.0"),
    ]


def test_reasons_that_differ_each_time_do_not_fill_the_log(outage: RetryLog, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1000):
        outage.failed("gone reason=%d", number, kind=str(number))
    assert len(caplog.messages) == 8


def test_a_failure_that_nobody_expects_shows_its_traceback_once(
    outage: RetryLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(301):  # 150 s, two tries a second
        outage.crashed("failed name=%s", "a", cause=KeyError("x"))
        clock.now += 0.5
    assert [(record.levelname, bool(record.exc_info), record.getMessage()) for record in caplog.records] == [
        ("ERROR", True, "failed name=a"),
        ("ERROR", False, "failed name=a failures=121 outage_s=60.0"),
        ("ERROR", False, "failed name=a failures=241 outage_s=120.0"),
    ]
