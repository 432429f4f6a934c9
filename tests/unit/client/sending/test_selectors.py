"""The choice of the queue of a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq.sending.selectors import Selector, by_consistent_hash, by_hash, consistent_hash
from minimq_common.errors import InvalidArgument
from minimq_common.model import Message, MessageQueue
from minimq_common.names import machine_room_of
from support.cases import for_each


def queues(count: int, *brokers: str) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue("t", broker, number) for broker in brokers or ("a",) for number in range(count))


def message(*keys: str) -> Message:
    return Message("t", b"x", keys=keys)


# ---- By hash ------------------------------------------------------------------------------------


@for_each(
    ("key", "of_ten", "of_four", "of_eight"),
    [
        ("123", 0, 2, 2),
        ("234", 3, 3, 3),
        ("polygenelubricants", 8, 0, 0),
        ("GydZG_", 8, 0, 0),
        ("DESIGNING WORKHOUSES", 8, 0, 0),
        ("order-1", 0, 2, 6),
        ("order-2", 9, 1, 5),
        ("TagA", 9, 3, 7),
        ("TagB", 0, 0, 0),
    ],
)
def test_the_hash_chooses_as_in_java(key: str, of_ten: int, of_four: int, of_eight: int) -> None:
    for count, expected in ((10, of_ten), (4, of_four), (8, of_eight)):
        assert by_hash(key)(queues(count), message()).queue_id == expected
        assert by_hash()(queues(count), message(key, "another")).queue_id == expected


@pytest.mark.parametrize("selector", [by_hash(), by_consistent_hash()], ids=["hash", "consistent hash"])
def test_a_message_without_a_key_is_rejected(selector: Selector) -> None:
    with pytest.raises(InvalidArgument, match="the message has no key"):
        selector(queues(4), message())


# ---- By consistent hash -------------------------------------------------------------------------


@given(st.text(), st.integers(1, 64))
def test_the_queues_of_one_broker_are_the_buckets(key: str, count: int) -> None:
    assert by_consistent_hash(key)(queues(count), message()).queue_id == consistent_hash(key, count)


@given(st.text(), st.integers(1, 8), st.integers(1, 8), st.integers(1, 4))
def test_when_the_topic_grows_keys_move_to_new_queues_only(key: str, before: int, more: int, brokers: int) -> None:
    names = "abcd"[:brokers]
    old, new = queues(before, *names), queues(before + more, *names)
    selector = by_consistent_hash()
    was, is_now = selector(old, message(key)), selector(new, message(key))
    assert is_now == was or is_now not in old


def test_few_keys_move_when_the_topic_grows() -> None:
    old, new = queues(4, "a", "b"), queues(5, "a", "b")
    selector = by_consistent_hash()
    keys = [f"user-{number}" for number in range(10_000)]
    moved = sum(selector(old, message(key)) != selector(new, message(key)) for key in keys)
    assert 1_800 < moved < 2_200  # 2 of 10 queues are new


# ---- By chance ----------------------------------------------------------------------------------


# ---- Machine rooms ------------------------------------------------------------------------------


@for_each(
    ("broker", "room"), [("east@broker-a", "east"), ("broker-a", ""), ("@broker-a", ""), ("east@a@b", "east"), ("", "")]
)
def test_the_room_stands_before_the_broker(broker: str, room: str) -> None:
    assert machine_room_of(broker) == room
