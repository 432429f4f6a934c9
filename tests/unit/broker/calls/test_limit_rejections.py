"""Limits that reject are counted, and logged once a minute."""

from __future__ import annotations

import pytest

from minimq_broker.calls.append import checked_header
from minimq_broker.calls.limits import LimitErrors, Limits
from minimq_common.errors import InvalidArgument, MessageTooLarge, SystemBusy
from support.kernel_stores import make_batch


def test_each_limit_is_logged_when_it_begins_to_reject(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    rejections = LimitErrors(lambda: now)

    def lines() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    groups = SystemBusy("10 groups", limit="groups")
    for error in (groups, groups, SystemBusy("busy"), InvalidArgument("no"), None):
        rejections.note(error)
    rejections.note(SystemBusy("3 topics", limit="topics"))
    assert +rejections.counts == {"groups": 2, "topics": 1}
    assert lines() == [
        "rejected: a limit is reached limit=groups reason=10 groups",
        "rejected: a limit is reached limit=topics reason=3 topics",
    ]
    now += 61.0
    rejections.note(groups)  # it was quiet for long enough
    assert lines() == ["rejected: a limit is reached limit=groups reason=10 groups"]
    for _ in range(70):
        now += 1.0
        rejections.note(groups)
    assert lines() == ["rejected: a limit is reached limit=groups reason=10 groups failures=61 outage_s=60.0"]


def test_a_batch_and_a_body_over_a_limit_are_rejected() -> None:
    data = make_batch([bytes(1000)])
    assert checked_header(Limits(1000, len(data), 1 << 20), data).largest_body == 1000
    with pytest.raises(MessageTooLarge, match=rf"a batch of {len(data)} bytes is over the limit of this broker"):
        checked_header(Limits(1000, len(data) - 1, 1 << 20), data)
    with pytest.raises(MessageTooLarge, match="a message body has 1000 bytes, the limit of this broker is 999"):
        checked_header(Limits(999, len(data), 1 << 20), data)
