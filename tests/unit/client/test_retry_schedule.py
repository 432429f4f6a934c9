from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import pytest

from minimq.routes.retry_schedule import RetrySchedule, after_waiting, try_timeout_s
from minimq_common.errors import MiniMQError, SystemBusy, TopicNotFound, TopicUnavailable, Unavailable
from minimq_common.model import AwayBroker

AWAY = Unavailable("nothing listens there")


def pauses(patience_s: float, error: MiniMQError) -> list[float]:
    """Return the waits between tries that all fail at once."""
    now, found = 100.0, list[float]()
    schedule = RetrySchedule(patience_s, now)
    with suppress(type(error)):
        while True:
            found.append(schedule.pause_s(error, now))
            now += found[-1]
    return found


@pytest.mark.parametrize("error", [AWAY, TopicUnavailable("no broker"), SystemBusy("just started")])
def test_the_last_try_is_at_the_end_of_the_time(error: MiniMQError) -> None:
    found = pauses(2.0, error)
    assert sum(found) == pytest.approx(2.0)
    assert found[0] <= 0.1
    assert max(found) <= 0.5


def test_what_does_not_go_away_is_not_tried_again() -> None:
    assert pauses(60.0, TopicNotFound("orders")) == []


def test_without_patience_there_is_one_try() -> None:
    assert pauses(0.0, AWAY) == []


def test_a_server_is_given_the_time_that_it_asks_for() -> None:
    assert min(pauses(10.0, SystemBusy("too much to do", retry_after_s=3.0))[:-1]) == 3.0


def test_the_error_at_the_end_says_how_long_it_took_and_carries_what_it_did() -> None:
    away = AwayBroker("c", "broker-a", {}, datetime(2026, 1, 1, tzinfo=UTC), stopped=True, queues=4)
    schedule = RetrySchedule(0.0, 100.0, "readTimeout")
    with pytest.raises(TopicUnavailable) as caught:
        schedule.pause_s(TopicUnavailable("all are away", retry_after_s=2.0, away=[away]), 100.0)
    assert caught.value.message == "all are away (waited 0 s, as readTimeout says)"
    assert (caught.value.away, caught.value.retry_after_s) == ((away,), 2.0)
    assert after_waiting(AWAY, 1.5).message == "nothing listens there (waited 1.5 s)"
    assert AWAY.message == "nothing listens there"


@pytest.mark.parametrize(
    ("left", "tries", "expected"),
    [
        (6.0, 0, 1.0),
        (6.0, 1, 2.0),
        (6.0, 2, 3.0),
        (6.0, 3, 6.0),
        (3.0, 9, 3.0),
        (0.6, 0, 0.2),
        (0.3, 0, 0.2),
        (0.3, 3, 0.3),
        (0.1, 5, 0.2),
        (-1.0, 1, 0.2),
    ],
)
def test_a_try_gets_its_share_of_the_time_left(left: float, tries: int, expected: float) -> None:
    assert try_timeout_s(100.0, 100.0 + left, tries) == pytest.approx(expected)
