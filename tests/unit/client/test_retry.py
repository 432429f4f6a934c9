"""The decision about a batch after a failed try."""

from __future__ import annotations

import pytest

from minimq.sending.retry import GiveUp, TryAgain, next_step
from minimq_common import errors
from minimq_common.errors import MiniMQError

#: For each error: its marks (retriable, refresh_route, avoid_broker), and whether a free batch is tried again, and one
#: that is bound to its queue.
TABLE = {
    "MiniMQError": ("- - -", "gives up", "gives up"),
    "UsageError": ("- - -", "gives up", "gives up"),
    "InvalidArgument": ("- - -", "gives up", "gives up"),
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
    "AccessConflict": ("- - -", "gives up", "gives up"),
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


def decide(
    error: MiniMQError,
    *,
    tries: int = 1,
    now: float = 100.0,
    deadline: float = 200.0,
    bound: bool = False,
    elsewhere: bool = True,
) -> GiveUp | TryAgain:
    return next_step(error, tries=tries, now=now, deadline=deadline, bound=bound, elsewhere=elsewhere)


def delay(error: MiniMQError, *, tries: int = 1, bound: bool = False, elsewhere: bool = True) -> float:
    step = decide(error, tries=tries, bound=bound, elsewhere=elsewhere)
    assert isinstance(step, TryAgain)
    return step.delay_s


def test_the_table_lists_every_error() -> None:
    assert sorted(TABLE) == sorted(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_every_error(name: str) -> None:
    marks, free, bound = TABLE[name]
    cls = CLASSES[name]
    found = (cls.retriable and "again", cls.refresh_route and "route", cls.avoid_broker and "avoid")
    assert " ".join(mark or "-" for mark in found) == marks
    for is_bound, expected in ((False, free), (True, bound)):
        for elsewhere in (False, True):
            step = decide(cls("why"), bound=is_bound, elsewhere=elsewhere)
            if expected == "gives up":
                assert step == GiveUp("trying again does not help", hopeless=True)
            else:
                assert step == TryAgain(0.0, refresh_route="route" in marks)


@pytest.mark.parametrize(("tries", "expected"), [(0, 0.1), (1, 0.0), (2, 0.1), (3, 0.3), (4, 1.0), (5, 1.0), (50, 1.0)])
@pytest.mark.parametrize("bound", [False, True])
def test_waits_get_longer(tries: int, expected: float, bound: bool) -> None:
    assert delay(errors.Unavailable("gone"), tries=tries, bound=bound) == expected


@pytest.mark.parametrize(
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
def test_the_wait_that_the_server_asks_for(asked: float, bound: bool, elsewhere: bool, expected: float) -> None:
    busy = errors.SystemBusy("busy", retry_after_s=asked)
    assert delay(busy, tries=2, bound=bound, elsewhere=elsewhere) == expected


@pytest.mark.parametrize("bound", [False, True])
def test_no_try_begins_at_the_deadline_or_later(bound: bool) -> None:
    gone = errors.Unavailable("gone")
    assert decide(gone, tries=3, deadline=100.31, bound=bound) == TryAgain(0.3, refresh_route=True)
    assert decide(gone, tries=3, deadline=100.3, bound=bound) == GiveUp("no time is left to wait 0.3 s", hopeless=False)
    assert decide(gone, tries=1, deadline=100.0, bound=bound) == GiveUp("no time is left", hopeless=False)
    assert decide(gone, tries=4, deadline=99.0, bound=bound) == GiveUp("no time is left", hopeless=False)


def test_a_wait_that_is_asked_for_may_be_longer_than_there_is_time() -> None:
    busy = errors.SystemBusy("busy", retry_after_s=5.0)
    assert decide(busy, deadline=104.0, bound=True) == GiveUp("no time is left to wait 5 s", hopeless=False)
    assert decide(busy, deadline=104.0, elsewhere=True) == TryAgain(0.0, refresh_route=False)
