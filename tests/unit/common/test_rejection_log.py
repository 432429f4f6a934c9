"""The log of rejections has a line for each kind, and strangers cannot fill it."""

from __future__ import annotations

import pytest

from minimq_common.security import access_control
from minimq_common.security.access_control import RejectionLog
from minimq_common.security.access_rule import Need, Resource, Verb


def test_a_kind_is_logged_once_a_minute_and_invented_kinds_at_most_to_the_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    rejections = RejectionLog(lambda: now)
    for _ in range(3):
        rejections.caller_rejected("unknown", "aaaaaaaa")
    assert caplog.messages == ["access: a caller is rejected reason=unknown key=aaaaaaaa"]
    for number in range(3 * access_control._MAX_KINDS):
        rejections.caller_rejected("unknown", f"{number:08}")
    assert len(caplog.records) == access_control._MAX_KINDS
    rejections.request_denied("alice", Need(Verb.READ, Resource.TOPIC, "t"))  # strangers do not suppress it
    assert caplog.messages[-1] == "access: a request is rejected user=alice need='read topic t'"
    now = 61.0
    rejections.caller_rejected("unknown", "aaaaaaaa")
    assert caplog.messages[-1] == "access: a caller is rejected reason=unknown key=aaaaaaaa"
    assert rejections.unauthenticated["unknown"] == 4 + 3 * access_control._MAX_KINDS
