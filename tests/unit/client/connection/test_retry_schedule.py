"""The retry policy: when the next attempt of a call or of a batch follows, and how long each may take."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import pytest

from minimq.connection.retry_schedule import RetrySchedule, after_waiting, attempt_timeout_s, batch_pause_s
from minimq_common import errors
from minimq_common.errors import MinimqError, SystemBusy, TopicUnavailable, Unavailable
from minimq_common.model import OfflineBroker
from support.cases import for_each

OFFLINE = Unavailable("nothing listens there")


def pauses(max_wait_s: float, error: MinimqError) -> list[float]:
    """Return the waits between attempts that all fail at once."""
    now, found = 100.0, list[float]()
    schedule = RetrySchedule(max_wait_s, now)
    with suppress(type(error)):
        while True:
            found.append(schedule.pause_s(error, now))
            now += found[-1]
    return found


@pytest.mark.parametrize(
    "error", [OFFLINE, TopicUnavailable("no broker"), SystemBusy("just started", retry_after_s=0.0)]
)
def test_the_last_try_is_at_the_end_of_the_time(error: MinimqError) -> None:
    found = pauses(2.0, error)
    assert sum(found) == pytest.approx(2.0)
    assert found[0] <= 0.1
    assert max(found) <= 0.5


def test_the_error_at_the_end_says_how_long_it_took_and_carries_what_it_did() -> None:
    offline = OfflineBroker("c", "broker-a", {}, datetime(2026, 1, 1, tzinfo=UTC), stopped=True, queues=4)
    schedule = RetrySchedule(0.0, 100.0, "readTimeout")
    with pytest.raises(TopicUnavailable) as caught:
        schedule.pause_s(TopicUnavailable("all are offline", retry_after_s=2.0, offline=[offline]), 100.0)
    assert caught.value.message == "all are offline (waited 0 s, as readTimeout says)"
    assert (caught.value.offline, caught.value.retry_after_s) == ((offline,), 2.0)
    assert after_waiting(OFFLINE, 1.5).message == "nothing listens there (waited 1.5 s)"
    assert OFFLINE.message == "nothing listens there"
    told = after_waiting(Unavailable("the broker has told (waited 3 s)"), 1.5)
    assert str(told) == told.message == "the broker has told (waited 3 s) (waited 1.5 s)", "its words are its own"
    assert told.with_message("else").message == "else"


@for_each(
    ("left", "attempts", "expected"),
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
def test_a_try_gets_its_share_of_the_time_left(left: float, attempts: int, expected: float) -> None:
    assert attempt_timeout_s(100.0, 100.0 + left, attempts) == pytest.approx(expected)


# ---- batches ------------------------------------------------------------------------------------

#: For each error: its marks (retriable, refresh_route, avoid_broker), and whether a free batch is tried again, and one
#: that is bound to its queue.
TABLE = {
    "MinimqError": ("- - -", "gives up", "gives up"),
    "UsageError": ("- - -", "gives up", "gives up"),
    "InvalidArgument": ("- - -", "gives up", "gives up"),
    "Unsupported": ("- - -", "gives up", "gives up"),
    "MessageTooLarge": ("- - -", "gives up", "gives up"),
    "Closed": ("- - -", "gives up", "gives up"),
    "ServerError": ("- - -", "gives up", "gives up"),
    "TopicNotFound": ("- route -", "tries again", "gives up"),
    "TopicRecreated": ("- route -", "tries again", "gives up"),
    "TopicUnavailable": ("again route -", "tries again", "tries again"),
    "TopicExists": ("- - -", "gives up", "gives up"),
    "QueueNotFound": ("- route -", "tries again", "gives up"),
    "NoPermission": ("again route -", "tries again", "tries again"),
    "NotDrained": ("again - -", "tries again", "tries again"),
    "OffsetOutOfRange": ("- - -", "gives up", "gives up"),
    "ConnectionMismatch": ("- route avoid", "tries again", "gives up"),
    "DamagedMessages": ("- - -", "gives up", "gives up"),
    "CorruptBatch": ("- - -", "gives up", "gives up"),
    "MalformedBody": ("- - -", "gives up", "gives up"),
    "StaleSequence": ("- - -", "gives up", "gives up"),
    "TransactionEnded": ("- - -", "gives up", "gives up"),
    "TransactionExpired": ("- - -", "gives up", "gives up"),
    "GroupNotFound": ("- - -", "gives up", "gives up"),
    "Fenced": ("- - -", "gives up", "gives up"),
    "HandleExpired": ("- - -", "gives up", "gives up"),
    "GroupConflict": ("- - -", "gives up", "gives up"),
    "NotAuthenticated": ("- - -", "gives up", "gives up"),
    "AccessDenied": ("- - -", "gives up", "gives up"),
    "BrokerConflict": ("again - -", "tries again", "tries again"),
    "StaleTerm": ("- - -", "gives up", "gives up"),
    "TermEnding": ("- - -", "gives up", "gives up"),
    "ReplicaSetChanged": ("- - -", "gives up", "gives up"),
    "NotInSync": ("- - -", "gives up", "gives up"),
    "NotMaster": ("again route -", "tries again", "tries again"),
    "NotEnoughReplicas": ("again - avoid", "tries again", "tries again"),
    "SystemBusy": ("again - avoid", "tries again", "tries again"),
    "RejectedByProxy": ("again - -", "tries again", "tries again"),
    "StoreFull": ("again - avoid", "tries again", "tries again"),
    "InternalError": ("again - avoid", "tries again", "tries again"),
    "TransportError": ("again route avoid", "tries again", "tries again"),
    "Unavailable": ("again route avoid", "tries again", "tries again"),
    "DeadlineExceeded": ("again route avoid", "tries again", "tries again"),
    "BufferFull": ("again - -", "tries again", "tries again"),
    "SendFailed": ("- - -", "gives up", "gives up"),
    "RequestFailed": ("- - -", "gives up", "gives up"),
    "CannotListen": ("- - -", "gives up", "gives up"),
    "StoreError": ("- - -", "gives up", "gives up"),
    "DataDirectoryInUse": ("- - -", "gives up", "gives up"),
    "DataDirectoryVersion": ("- - -", "gives up", "gives up"),
    "CorruptEntry": ("- - -", "gives up", "gives up"),
    "CopyNeeded": ("- - -", "gives up", "gives up"),
    "CopyInterrupted": ("- - -", "gives up", "gives up"),
}
CLASSES = {cls.__name__: cls for cls in errors.BY_CODE.values()}


def test_the_table_lists_every_error() -> None:
    assert sorted(TABLE) == sorted(CLASSES)


@for_each("name", CLASSES)
@for_each("elsewhere", [False, True])
def test_whether_a_batch_is_tried_again_after_an_error(name: str, elsewhere: bool) -> None:
    marks, free, bound = TABLE[name]
    cls = CLASSES[name]
    found = (cls.retriable and "again", cls.refresh_route and "route", cls.avoid_broker and "avoid")
    assert " ".join(mark or "-" for mark in found) == marks
    for is_bound, expected in ((False, free), (True, bound)):
        pause_s = batch_pause_s(cls("why"), 1, bound=is_bound, elsewhere=elsewhere)
        asked_s = cls.retry_s if is_bound or not elsewhere else 0.0
        assert pause_s == (None if expected == "gives up" else asked_s)


@for_each(("attempts", "expected"), [(0, 0.1), (1, 0.0), (2, 0.1), (3, 0.3), (4, 1.0), (5, 1.0), (50, 1.0)])
@for_each("bound", [False, True])
def test_the_waits_of_a_batch_get_longer(attempts: int, expected: float, bound: bool) -> None:
    assert batch_pause_s(OFFLINE, attempts, bound=bound, elsewhere=True) == expected


@for_each(
    ("asked", "bound", "elsewhere", "expected"),
    [
        (0.5, True, True, 0.5),
        (0.5, True, False, 0.5),
        (0.5, False, True, 0.1),
        (0.5, False, False, 0.5),
        (0.05, True, False, 0.1),
        (0.05, False, False, 0.1),
    ],
)
def test_the_wait_that_a_server_asks_for(asked: float, bound: bool, elsewhere: bool, expected: float) -> None:
    busy = SystemBusy("busy", retry_after_s=asked)
    assert batch_pause_s(busy, 2, bound=bound, elsewhere=elsewhere) == expected
