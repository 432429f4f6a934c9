"""The log of rejections tells of each kind, and does not grow with what strangers make up."""

from __future__ import annotations

import logging

import pytest

from minimq_common.security import access_control
from minimq_common.security.access_control import RejectionLog
from minimq_common.security.access_rule import Need, Resource, Verb


def test_a_kind_is_logged_once_a_minute_and_kinds_that_are_made_up_no_more_than_the_bound(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    rejections = RejectionLog(lambda: now)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            rejections.caller_rejected("unknown", "aaaaaaaa")
        assert [record.getMessage().partition(" before=")[2] for record in caplog.records] == ["0"]
        for number in range(3 * access_control._MAX_KINDS):
            rejections.caller_rejected("unknown", f"{number:08}")
        assert len(caplog.records) == access_control._MAX_KINDS + 1
        assert caplog.messages[-1].endswith("reason=unknown key=others before=0")
        rejections.request_denied("alice", Need(Verb.READ, Resource.TOPIC, "t"))  # whom strangers do not silence
        assert caplog.messages[-1].endswith("user=alice need='read topic t' before=0")
        now = 61.0
        rejections.caller_rejected("unknown", "aaaaaaaa")
        assert caplog.messages[-1].endswith("key=aaaaaaaa before=2")
        rejections.caller_rejected("unknown", "bbbbbbbb")  # there is room again
        assert caplog.messages[-1].endswith("key=bbbbbbbb before=0")
    assert rejections.unauthenticated["unknown"] == 5 + 3 * access_control._MAX_KINDS


def test_how_many_were_left_out_is_told_also_after_minutes_without_any(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    rejections = RejectionLog(lambda: now)
    for _ in range(3):
        rejections.caller_rejected("unknown", "aaaaaaaa")
        rejections.request_denied("alice", None)
    for _ in range(2):
        now += 61.0
        rejections.caller_rejected("unknown", "bbbbbbbb")
    caplog.clear()
    for _ in range(2):
        now += 61.0
        rejections.caller_rejected("unknown", "aaaaaaaa")
        rejections.request_denied("alice", None)
    assert [text.rpartition("=")[2] for text in caplog.messages] == ["2", "2", "0", "0"]


def test_users_that_are_made_up_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_control, "_MAX_LOGGED", 10)
    now = 0.0
    rejections = RejectionLog(lambda: now)
    for number in range(100):
        now += 10.0
        rejections.request_denied(f"k8s:{number}", None)
        assert len(rejections._counts) <= 11
        assert len(rejections._before) <= 21
