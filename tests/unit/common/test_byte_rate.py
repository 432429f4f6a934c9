"""The bytes that one user may move in a second, by a clock that is set."""

from __future__ import annotations

import asyncio

import pytest

from minimq_common.errors import InvalidArgument
from minimq_common.security.access_control import AccessControl
from minimq_common.security.access_document import (
    MIN_RATE,
    AccessDocument,
    StoredKey,
    User,
    UserLimits,
    decode,
    from_toml,
    to_toml,
)
from minimq_common.security.caller import ByteRate
from minimq_common.security.shared_access import SharedAccess
from minimq_common.security.user_key import new_key
from support.cases import for_each

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
    document = AccessDocument(1, {"alice": User(limits=UserLimits(MIN_RATE, 0)), "bob": User()})
    assert decode(document.encoded()) == document
    assert from_toml(to_toml(document).encode()) == document


@for_each("rate", [-1, 1, MIN_RATE - 1, 1 << 63])
def test_a_limit_that_would_stop_everything_is_rejected(rate: int) -> None:
    with pytest.raises(InvalidArgument, match="the lowest one is 102400"):
        decode(AccessDocument(1, {"alice": User(limits=UserLimits(0, rate))}).encoded())


def test_all_keys_of_a_user_share_its_limits_until_the_user_is_gone() -> None:
    async def check() -> None:
        one, other = (new_key(bytes([number]) * 37) for number in (1, 2))
        keys = {each.id: StoredKey(each.hash) for each in (one, other)}
        shared = SharedAccess()
        shared.settled.set()
        shared.offer(AccessDocument(1, {"alice": User(keys, limits=UserLimits(MIN_RATE))}), "test")
        control = AccessControl(tuple, shared)
        control.start()
        callers = [control.identify([("authorization", f"Bearer {each.text}")]) for each in (one, other)]
        rates = {each.received for each in callers}
        [rate] = rates
        assert rate is not None
        assert rate.bytes_per_s == MIN_RATE
        assert control.waited() == [("alice", "in", 0.0)]
        shared.offer(AccessDocument(2, {"alice": User(keys, limits=UserLimits(2 * MIN_RATE))}), "test")
        assert rate.bytes_per_s == 2 * MIN_RATE  # also of streams that are open
        shared.offer(AccessDocument(3), "test")
        del callers
        assert control.waited() == []
        await control.stop()

    asyncio.run(check())
