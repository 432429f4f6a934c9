"""Copies of messages that were not consumed, and what a listener sees of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq import Message, MessageQueue, PushConsumerOptions, ReceivedMessage
from minimq.consuming.received import EncodedRecords, ReceivedBatch
from minimq.features.listeners.retries import RetryRule, repeated
from minimq.features.work_queues.copies import (
    CopiedMessage,
    dead_letter_of,
    original_of,
    retry_of,
    retry_of_dead_letter,
)
from minimq.features.work_queues.work_queue_message import WorkQueueMessage
from minimq_common.batch.builder import BatchBuilder
from support.cases import for_each

NAMES = st.sampled_from(["a", "RETRY_TOPIC", "%RETRY_TOPIC", "%%ORIGIN_BORN", "DELIVERY_COUNT", "%", "%a", "ä"])


def received(message: Message, queue_offset: int = 7, producer_id: int = 5) -> ReceivedMessage:
    builder = BatchBuilder(1 << 20, message_group=message.message_group)
    builder.add([message])
    data = builder.build(producer_id, 3, 0)
    stored = EncodedRecords(queue_offset, 1_700_000_000_000, 0, 1, data)
    [found] = ReceivedBatch(MessageQueue(message.topic, "broker-a", 2), stored).messages(queue_offset)
    return found


def taken(copy: Message, times: int, queue_offset: int = 7, producer_id: int = 6) -> CopiedMessage:
    """Return the message of a copy that was received from the retry topic so many times."""
    found = received(copy, queue_offset, producer_id)
    return original_of(WorkQueueMessage(found.batch, found.index, found.body, found.tag, times, 9, "g"))


def test_a_copy_looks_like_its_message_except_for_the_deliveries() -> None:
    original = received(Message("orders", b"body", "tag", ("k1", "k2"), {"a": "1"}))
    again = taken(retry_of(original, "g", 5000), 2, queue_offset=1)
    assert (again.topic, again.body, again.tag, again.keys) == ("orders", b"body", "tag", ("k1", "k2"))
    assert again.properties == {"a": "1"}
    assert (again.message_id, again.born_at) == (original.message_id, original.born_at)
    assert (again.queue, again.queue_offset) == (MessageQueue("%RETRY%g", "broker-a", 2), 1)
    assert (original.delivery_count, again.delivery_count, again.delay_ms) == (1, 2, 5000)


@given(st.dictionaries(NAMES, st.text(max_size=3), max_size=5), st.integers(1, 4))
def test_properties_are_the_same_after_any_number_of_copies(properties: dict[str, str], copies: int) -> None:
    original = message = received(Message("orders", b"body", properties=properties))
    for _ in range(copies):
        message = taken(retry_of(message, "g", 1), 2)
    assert message.properties == properties
    assert (message.topic, message.message_id) == ("orders", original.message_id)
    assert message.delivery_count == copies + 1


@for_each("message_group", [None, "account-17"])
@for_each("copies", [1, 2])
def test_a_copy_has_the_message_group_and_a_property_of_that_name_is_none(
    message_group: str | None, copies: int
) -> None:
    message = received(Message("orders", b"body", properties={"MESSAGE_GROUP": "mine"}, message_group=message_group))
    for _ in range(copies):
        assert message.message_group == message_group
        message = taken(retry_of(message, "g", 1), 2)
    assert message.message_group == message_group
    assert message.properties == {"MESSAGE_GROUP": message_group or "mine"}


def test_a_dead_letter_of_one_group_is_an_ordinary_message_of_another() -> None:
    original = received(Message("orders", b"body", properties={"a": "1"}))
    dead = received(dead_letter_of(original, "g", "rejected", 1))
    again = taken(retry_of(dead, "other", 1), 2)
    assert again.topic == "%DLQ%g"
    assert again.properties == dead.properties
    assert again.properties["RETRY_TOPIC"] == "orders"


@pytest.mark.parametrize("copied", [False, True])
def test_a_dead_letter_tells_why_and_where_from(copied: bool) -> None:
    original = message = received(Message("orders", b"body", properties={"CONSUMER_GROUP": "mine"}))
    if copied:
        message = taken(retry_of(message, "g", 1), 2)
    letter = dead_letter_of(message, "g", "listener raised ValueError", 3)
    assert (letter.topic, letter.body) == ("%DLQ%g", b"body")
    assert letter.properties == {
        "%CONSUMER_GROUP": "mine",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": original.message_id,
        "ORIGIN_QUEUE": "orders/broker-a/2",
        "ORIGIN_OFFSET": "7",
        "ORIGIN_BORN": "5",
        "ORIGIN_STORED": "1700000000000",
        "DELIVERY_COUNT": "3",
        "CONSUMER_GROUP": "g",
        "DEAD_LETTER_REASON": "listener raised ValueError",
    }


def test_a_resent_dead_letter_begins_at_its_first_delivery() -> None:
    letter = received(dead_letter_of(received(Message("orders", b"body", properties={"a": "1"})), "g", "rejected", 3))
    again = taken(retry_of_dead_letter(letter, "g"), 1)
    assert (again.topic, again.body, again.properties) == ("orders", b"body", {"a": "1"})
    assert (again.delivery_count, again.delay_ms) == (1, 0)


def test_deliveries_by_one_consumer_count() -> None:
    message = received(Message("orders", b"body", properties={"RETRY_TOPIC": "mine"}))
    twice = repeated(repeated(message))
    assert twice.delivery_count == 3
    assert (twice.topic, twice.message_id, twice.properties) == (message.topic, message.message_id, message.properties)
    assert taken(retry_of(twice, "g", 1), 2).delivery_count == 4


def test_how_long_a_message_waits() -> None:
    rule = RetryRule(PushConsumerOptions(retry_delays_s=(0.5, 30, 60)))
    found = []
    message = received(Message("orders", b"body"))
    for _ in range(5):
        found.append(rule.delay_ms(message, None))
        message = repeated(message)
    assert found == [500, 30_000, 60_000, 60_000, 60_000]
    assert [rule.delay_ms(message, chosen) for chosen in (0, 2, 9)] == [500, 60_000, 60_000]


@for_each("text", ["9" * 30, "9" * 5000, "-1", "", "1e3"])
def test_numbers_that_no_copy_has_count_as_none(text: str) -> None:
    copy = retry_of(received(Message("orders", b"body")), "g", 1)
    numbers = dict.fromkeys(("ORIGIN_BORN", "DELIVERY_COUNT", "RETRY_DELAY_MS"), text)

    message = taken(Message(copy.topic, copy.body, properties={**copy.properties, **numbers}), 2)

    assert (message.delivery_count, message.delay_ms) == (1, 0)
    assert message.born_at.year < 9999
