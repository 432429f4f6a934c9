from __future__ import annotations

import pytest

from minimq.admin.master_client import merge_failures, raise_failures
from minimq_common.errors import InvalidArgument, MinimqError, NotDrained, SystemBusy, Unavailable
from support.cases import for_each

BUSY = SystemBusy("the disk is slow", retry_after_s=0.5)
UNREAD = NotDrained("group g has not read", retry_after_s=0.2)
GONE = Unavailable("not reached")
WRONG = InvalidArgument("1 to 1024")


@for_each(
    ("failures", "kind", "text", "retry_after_s"),
    [
        ({"a": BUSY}, SystemBusy, "a: the disk is slow", 0.5),
        ({"a": BUSY, "b": BUSY}, SystemBusy, "a, b: the disk is slow", 0.5),
        ({"a": BUSY, "b": UNREAD}, NotDrained, "b: group g has not read; a: the disk is slow", 0.2),
        (
            {"a": GONE, "b": UNREAD, "c": WRONG},
            InvalidArgument,
            "c: 1 to 1024; b: group g has not read; a: not reac",
            0,
        ),
    ],
)
def test_what_lasts_comes_first(failures: dict[str, MinimqError], kind: type, text: str, retry_after_s: float) -> None:
    merged = merge_failures(failures)
    assert type(merged) is kind
    assert merged.message.startswith(text)
    assert merged.retry_after_s == retry_after_s


@pytest.mark.parametrize(
    ("failures", "text"),
    [
        ({"a": BUSY, "b": BUSY}, "not done: the disk is slow"),
        ({"b": BUSY}, "not done on 1 of 2 brokers: b (h:2): the disk is slow; repeat"),
        (
            {"a": GONE, "b": UNREAD},
            "not done on 2 of 2 brokers: b (h:2): group g has not read; a (h:1): not reached; rep",
        ),
    ],
)
def test_one_text_says_which_brokers_failed_and_why(failures: dict[str, MinimqError], text: str) -> None:
    with pytest.raises(MinimqError) as raised:
        raise_failures("not done", failures, {"a": "h:1", "b": "h:2"}, "repeat")
    assert raised.value.message.startswith(text)
    assert raised.value.retry_after_s > 0


def test_without_a_failure_nothing_is_raised() -> None:
    raise_failures("not done", {}, {"a": "h:1"}, "repeat")
