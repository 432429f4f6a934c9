"""The bytes that one user may move in a second, by a clock that is set."""

from __future__ import annotations

import pytest

from minimq_common.errors import InvalidArgument
from minimq_common.security import byte_rate
from minimq_common.security.access_document import (
    LEAST_RATE,
    NO_LIMITS,
    AccessDocument,
    User,
    UserLimits,
    decode,
    from_toml,
    to_toml,
)
from minimq_common.security.access_policy import AccessDecision
from minimq_common.security.byte_rate import ByteRate
from minimq_common.security.caller import KnownCaller

RATE = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_is_moved_in_the_long_run_is_the_rate_and_one_second_more() -> None:
    clock = Clock()
    rate = ByteRate(RATE, clock)
    moved = 0
    for _ in range(10_000):  # ten seconds
        while not rate.owes_s():
            rate.moved(30_000)
            moved += 30_000
        clock.now += 0.001
    assert 11 * RATE <= moved <= 11 * RATE + 30_000


def test_a_message_larger_than_the_rate_passes_and_the_next_one_waits_for_it() -> None:
    clock = Clock()
    rate = ByteRate(RATE, clock)
    assert rate.owes_s() == 0
    rate.moved(5 * RATE)
    assert rate.owes_s() == pytest.approx(4.0)  # a second was saved
    clock.now += 4.0
    assert rate.owes_s() == 0


def test_nothing_is_owed_after_a_change_nor_without_a_limit() -> None:
    rate = ByteRate(RATE, Clock())
    rate.moved(100 * RATE)
    assert rate.owes_s() > 90
    rate.change(2 * RATE)
    assert rate.owes_s() == 0
    rate.change(0)
    rate.moved(1 << 60)
    assert rate.owes_s() == 0


def test_a_document_without_limits_travels_as_before_them() -> None:
    assert AccessDocument(1, {"alice": User()}).encoded() == (
        b'{"roles":{},"users":{"alice":{"disabled":false,"keys":{},"roles":[],"rules":[]}},"version":1}'
    )


def test_limits_are_read_as_they_are_written() -> None:
    document = AccessDocument(1, {"alice": User(limits=UserLimits(LEAST_RATE, 0)), "bob": User()})
    assert decode(document.encoded()) == document
    assert from_toml(to_toml(document).encode()) == document


@pytest.mark.parametrize("rate", [-1, 1, LEAST_RATE - 1, 1 << 63])
def test_a_limit_that_would_stop_everything_is_refused(rate: int) -> None:
    with pytest.raises(InvalidArgument, match="the lowest one is 102400"):
        decode(AccessDocument(1, {"alice": User(limits=UserLimits(0, rate))}).encoded())


def test_users_without_limits_are_forgotten_and_those_with_limits_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_rate, "_MOST_USERS", 10)
    rates = byte_rate.UserRates()
    callers = [KnownCaller(f"k8s:{number}", lambda need: AccessDecision(True, need), print) for number in range(100)]
    for caller in callers:
        rates.apply(caller, UserLimits(LEAST_RATE) if caller is callers[0] else NO_LIMITS)
    assert len(rates._rates) <= 11
    again = KnownCaller("k8s:0", lambda need: AccessDecision(True, need), print)
    rates.apply(again, UserLimits(LEAST_RATE))
    assert again.received is callers[0].received


def test_users_who_have_waited_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_rate, "_MOST_USERS", 10)
    rates = byte_rate.UserRates()
    callers = [KnownCaller(f"k8s:{number}", lambda need: AccessDecision(True, need), print) for number in range(100)]
    for caller in callers:
        rates.apply(caller, UserLimits(LEAST_RATE))
        assert caller.received is not None
        caller.received.waited_s = 1.0
        # Nobody but the first and the last user has limits in the newest document.
        rates.follow(lambda user, last=caller.user: UserLimits(LEAST_RATE) if user in {"k8s:0", last} else NO_LIMITS)  # type: ignore[misc]
    assert len(rates._rates) <= 10
    kept = {user for user, _, _ in rates.waited()}
    assert {"k8s:0", "k8s:99"} <= kept
    assert callers[1].received is not None
    assert callers[1].received.bytes_per_s == 0
