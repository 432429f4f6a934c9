"""Sign-ins are bounded in number and time, and so are attempts."""

from __future__ import annotations

import pytest

from minimq_common.errors import SystemBusy
from minimq_console.sign_ins import (
    IDLE_S,
    MAX_IN_ALL,
    MAX_PER_ADDRESS,
    MAX_PER_USER,
    MAX_S,
    MAX_SIGN_INS,
    MAX_VIEWS,
    WINDOW_S,
    Attempts,
    SignIns,
)


def test_a_page_that_is_open_keeps_it_until_the_longest_time_is_over() -> None:
    sign_ins: SignIns = SignIns()
    sign_ins.add("id", "alice", "view", 0.0)
    found = sign_ins.find("id", 0.0)
    assert found is not None
    found.requests += 1
    assert sign_ins.find("id", MAX_S - 1) is not None
    assert sign_ins.find("id", MAX_S) is None


def test_the_oldest_of_a_user_gives_way_and_others_do_not() -> None:
    sign_ins: SignIns = SignIns()
    for number in range(MAX_SIGN_INS):
        user = f"user-{number // MAX_PER_USER}"
        sign_ins.add(f"id-{number}", user, user, float(number))
    sign_ins.add("again", "user-1", "user-1", 2_000.0 - IDLE_S)
    assert sign_ins.find(f"id-{MAX_PER_USER}", 100.0) is None
    assert sign_ins.find(f"id-{MAX_PER_USER + 1}", 100.0) is not None
    with pytest.raises(SystemBusy):
        sign_ins.add("one more", "another", "another", 100.0)
    assert "again" not in repr(sign_ins.find("again", 100.0))
    sign_ins.end_all()
    assert sign_ins.views == set()


def test_a_key_more_than_the_limit_is_rejected() -> None:
    sign_ins: SignIns = SignIns()
    for number in range(MAX_VIEWS):
        for browser in ("laptop", "phone"):
            sign_ins.add(f"{browser}-{number}", f"user-{number}", f"key-{number}", 0.0)
    with pytest.raises(SystemBusy):
        sign_ins.add("one more", "another", "one more key", 0.0)


def test_attempts_of_an_address_and_of_all_are_counted_for_a_while() -> None:
    attempts = Attempts()
    for _ in range(MAX_PER_ADDRESS):
        attempts.check("a", 0.0)
    with pytest.raises(SystemBusy, match="try again in 60 s"):
        attempts.check("a", 0.0)
    attempts.check("b", 0.0)
    attempts.check("a", WINDOW_S)
    for number in range(MAX_IN_ALL - 1):
        attempts.check(f"c-{number}", WINDOW_S)
    with pytest.raises(SystemBusy):
        attempts.check("d", WINDOW_S)
