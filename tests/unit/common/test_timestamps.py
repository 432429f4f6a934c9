from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest

from minimq_common.errors import InvalidArgument
from minimq_common.timestamps import MAX_TIME_MS, Time, moment, timestamp_ms
from support.cases import for_each
from support.command import environment

NOW = 1_769_846_400.25  # 2026-01-31T08:00:00.250Z
NOW_MS = 1_769_846_400_250


@for_each(
    ("given", "ms"),
    [
        (datetime(2026, 1, 31, 8, tzinfo=UTC), 1_769_846_400_000),
        (datetime(2026, 1, 31, 17, tzinfo=timezone(timedelta(hours=9))), 1_769_846_400_000),
        ("2026-01-31T08:00Z", 1_769_846_400_000),
        ("2026-01-31T17:00:00.123+09:00", 1_769_846_400_123),
        (" 2026-01-31 08:00:00Z ", 1_769_846_400_000),
        (1_769_846_400_000, 1_769_846_400_000),
        ("1769846400000", 1_769_846_400_000),
        ("1769846400000ms", 1_769_846_400_000),
        (0, 0),
        ("1", 1),
        ("-24h", NOW_MS - 86_400_000),
        ("-90m", NOW_MS - 5_400_000),
        ("-7d", NOW_MS - 7 * 86_400_000),
        ("-1d12h", NOW_MS - 36 * 3_600_000),
        ("-0s", NOW_MS),
        ("1960-01-01T00:00Z", 0),
        ("9999-12-31T23:59:59.999999Z", MAX_TIME_MS),
        ("9999-12-31T23:59-23:59", MAX_TIME_MS),
        ("-5000w", 0),
    ],
)
def test_kinds_of_moments(given: Time, ms: int) -> None:
    assert timestamp_ms(given, NOW, "start") == ms


@for_each(
    ("given", "text"),
    [
        (datetime(2026, 1, 31, 8), "has no time zone: datetime.now(UTC)"),  # noqa: DTZ001
        ("2026-01-31", "has no time zone: write 2026-01-31T00:00:00Z for UTC, or 2026-01-31T00:00:00"),
        ("0001-01-01", "has no time zone: write 0001-01-01T00:00:00Z for UTC"),
        ("yesterday", "it must be 'latest', a time such as"),
        ("24h", "it must be 'latest', a time such as"),
        ("-24", "it must be"),
        ("-", "it must be"),
        ("", "it must be"),
        (1_769_846_400, "write 1769846400000 if it is seconds"),
        ("20260131", "1970-01-01T05:37Z in milliseconds since 1970"),
        (-1, "milliseconds since 1970 are 0 to"),
        ("9" * 99, "milliseconds since 1970 are 0 to"),
        ("x" * 10_000, "...: it must be"),
        (True, "True: it must be"),
        (1.5, "1.5: it must be"),
        (None, "None: it must be"),
    ],
)
def test_what_is_no_moment(given: object, text: str) -> None:
    with pytest.raises(InvalidArgument) as told:
        timestamp_ms(given, NOW, "start", "'latest', ")
    assert text in told.value.message
    assert told.value.message.startswith("start is ")
    assert len(told.value.message) < 400


def test_a_time_zone_that_is_missing_is_never_guessed_wherever_the_machine_is() -> None:
    program = """
import time
from datetime import UTC, datetime
from minimq_common.errors import InvalidArgument
from minimq_common.timestamps import MAX_TIME_MS, timestamp_ms

assert time.tzname[0] == "JST"
when = datetime(2026, 1, 31, 8, tzinfo=UTC)
assert timestamp_ms(when, 0, "x") == timestamp_ms(when.astimezone(), 0, "x") == timestamp_ms(when.isoformat(), 0, "x")
for naive in (when.replace(tzinfo=None), "2026-01-31T08:00"):
    try:
        timestamp_ms(naive, 0, "x")
    except InvalidArgument as error:
        print(error.message)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(TZ="Asia/Tokyo"), capture_output=True, check=True, timeout=60
    )
    first, second = done.stdout.decode().splitlines()
    assert "no time zone" in first
    assert "2026-01-31T08:00:00Z for UTC, or 2026-01-31T08:00:00+09:00 for the local time of this machine" in second


@pytest.mark.parametrize(
    ("ms", "when"),
    [
        (1_769_846_400_123, datetime(2026, 1, 31, 8, 0, 0, 123_000, UTC)),
        (-(1 << 63), datetime(1970, 1, 1, tzinfo=UTC)),
        ((1 << 63) - 1, datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)),
    ],
)
def test_a_time_that_another_process_says_is_always_one_of_the_calendar(ms: int, when: datetime) -> None:
    assert moment(ms) == when
