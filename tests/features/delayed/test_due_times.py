"""Due times: what a message may say about when it is delivered, and which messages travel together."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq.features.delayed.due_times import MAX_DELAY_S, PRECISION_S, DueTime, due_time
from minimq_common.errors import InvalidArgument
from minimq_common.model import Message
from minimq_proto.v1 import broker_pb2
from support.cases import for_each

NOW, TIME = 1_000.0, 1_700_000_000.0


def due_of(**fields: object) -> DueTime | None:
    return due_time(Message("t", b"x", **fields), NOW, TIME)  # type: ignore[arg-type]


def written(due: DueTime, now: float) -> broker_pb2.Delay:
    request = broker_pb2.Append()
    due.write(request, now)
    return request.delay


@for_each("fields", [{}, {"deliver_after_s": 0}, {"deliver_at": 0}, {"message_group": "g"}])
def test_a_message_without_a_due_time_is_delivered_at_once(fields: dict[str, object]) -> None:
    assert due_of(**fields) is None


def test_a_delay_begins_with_the_sending_and_what_is_left_of_it_is_rounded_up() -> None:
    due = due_of(deliver_after_s=1.0005)
    assert due is not None
    assert [written(due, NOW + passed_s).delay_ms for passed_s in (0, 0.5, 9)] == [1001, 501, 0]


@pytest.mark.parametrize(
    "moment",
    [
        TIME + 60.0005,
        datetime.fromtimestamp(TIME + 60.0005, UTC),
        datetime.fromtimestamp(TIME + 60.0005, timezone(timedelta(hours=-7))),
    ],
)
def test_a_time_of_day_is_rounded_up(moment: object) -> None:
    due = due_of(deliver_at=moment)
    assert due is not None
    assert written(due, NOW).due_ms == int(TIME + 60) * 1000 + 1


@for_each(
    ("fields", "text"),
    [
        ({"deliver_after_s": 1, "deliver_at": TIME}, "give one of them"),
        ({"deliver_after_s": -1}, "it must be 0 to 31622400, which is 366 days"),
        ({"deliver_after_s": MAX_DELAY_S + 1}, "366 days"),
        ({"deliver_after_s": math.nan}, "it must be 0 to"),
        ({"deliver_after_s": "30m"}, "give a number of seconds"),
        ({"deliver_after_s": True}, "give a number of seconds"),
        ({"deliver_at": datetime(2026, 12, 24, 18)}, "has no time zone"),  # noqa: DTZ001 - that is the case
        ({"deliver_at": "2026-12-24"}, "give a datetime"),
        ({"deliver_at": -1}, "0 or more"),
        ({"deliver_at": math.inf}, "0 or more"),
        ({"deliver_at": TIME + MAX_DELAY_S + 1}, "more than 366 days ahead: send it again by then"),
        ({"deliver_at": TIME * 1000}, "give seconds, not milliseconds"),
        ({"deliver_at": 10**400}, "more than 366 days ahead"),
        ({"recallable": True}, "without a due time cannot be recalled"),
        ({"deliver_after_s": 1, "message_group": "g"}, "leave out deliver_after_s"),
        ({"deliver_at": TIME, "message_group": "g"}, "leave out deliver_after_s"),
    ],
)
def test_a_wrong_due_time_is_rejected(fields: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        due_of(**fields)


def test_recallable_messages_never_share_a_bucket() -> None:
    dues = [due_of(deliver_after_s=60, recallable=True) for _ in range(3)]
    assert len({due.bucket for due in dues if due is not None}) == 3


def test_a_delay_and_a_time_of_day_never_share_a_bucket() -> None:
    one = due_time(Message("t", b"x", deliver_after_s=5), NOW, NOW)
    other = due_time(Message("t", b"x", deliver_at=NOW + 5), NOW, NOW)
    assert one is not None
    assert other is not None
    assert one.at_s == other.at_s
    assert one.bucket != other.bucket


@given(st.lists(st.floats(0.001, 2)))
def test_nothing_is_early_nor_later_than_the_precision(delays: list[float]) -> None:
    dues = [due_time(Message("t", b"x", deliver_after_s=delay), NOW, TIME) for delay in delays]
    for own in dues:
        assert own is not None
        batch = max(due for due in dues if due is not None and due.bucket == own.bucket)
        assert own.at_s <= batch.at_s <= own.at_s + PRECISION_S
