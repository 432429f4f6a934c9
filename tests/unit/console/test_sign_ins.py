"""Sign-ins are bounded in number and time, and so are attempts."""

from __future__ import annotations

import pytest

from minimq_common.errors import SystemBusy
from minimq_console.attempts import MOST_OF_ALL, MOST_OF_AN_ADDRESS, WINDOW_S, Attempts
from minimq_console.form_tokens import FormTokens
from minimq_console.sign_ins import IDLE_S, LONGEST_S, MOST_OF_A_USER, MOST_SIGN_INS, SignIns


def test_a_visitor_who_is_gone_is_signed_out() -> None:
    sign_ins: SignIns[str] = SignIns()
    sign_ins.add("token", "alice", "view", 0.0)
    assert sign_ins.find("token", IDLE_S - 1) is not None
    assert sign_ins.find("token", IDLE_S) is None
    assert [each.view for each in sign_ins.take_ended()] == ["view"]
    assert sign_ins.take_ended() == []


def test_a_page_that_is_open_keeps_it_until_the_longest_time_is_over() -> None:
    sign_ins: SignIns[str] = SignIns()
    signed_in = sign_ins.add("token", "alice", "view", 0.0)
    sign_ins.begin_request(signed_in)
    assert sign_ins.find("token", LONGEST_S - 1) is not None
    sign_ins.end_request(signed_in, LONGEST_S - 1)
    assert sign_ins.find("token", LONGEST_S) is None


def test_the_oldest_of_a_user_gives_way_and_others_do_not() -> None:
    sign_ins: SignIns[str] = SignIns()
    users = [f"user-{number // MOST_OF_A_USER}" for number in range(MOST_SIGN_INS)]
    for number, user in enumerate(users):
        sign_ins.add(f"token-{number}", user, f"view-{number}", float(number))
    sign_ins.add("again", "user-1", "view", 100.0)
    assert [each.token for each in sign_ins.take_ended()] == [f"token-{MOST_OF_A_USER}"]
    with pytest.raises(SystemBusy):
        sign_ins.add("one more", "another", "view", 100.0)
    assert len(sign_ins) == MOST_SIGN_INS
    assert "token" not in repr(sign_ins.find("again", 100.0))
    sign_ins.end_all()
    assert len(sign_ins.take_ended()) == MOST_SIGN_INS


def test_attempts_of_an_address_and_of_all_are_counted_for_a_while() -> None:
    attempts = Attempts()
    for _ in range(MOST_OF_AN_ADDRESS):
        attempts.check("a", 0.0)
    with pytest.raises(SystemBusy, match="try again in 60 s"):
        attempts.check("a", 0.0)
    attempts.check("b", 0.0)
    attempts.check("a", WINDOW_S)
    for number in range(MOST_OF_ALL - 1):
        attempts.check(f"c-{number}", WINDOW_S)
    with pytest.raises(SystemBusy):
        attempts.check("d", WINDOW_S)


def test_an_attempt_that_succeeds_does_not_count() -> None:
    attempts = Attempts()
    for number in range(3 * MOST_OF_ALL):
        attempts.check("a", float(number))
        attempts.succeeded("a", float(number))


def test_a_token_is_of_one_browser_and_one_console() -> None:
    tokens, others = FormTokens(b"secret"), FormTokens(b"another")
    assert tokens.is_of(tokens.of("browser"), "browser")
    assert not tokens.is_of(tokens.of("browser"), "another")
    assert not tokens.is_of(others.of("browser"), "browser")
    assert not tokens.is_of("\N{SNOWMAN}", "browser")
    assert not tokens.is_of(tokens.of(""), "")
    assert "secret" not in repr(tokens)
