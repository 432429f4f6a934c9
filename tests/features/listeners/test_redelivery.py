"""Copies of messages that were not consumed, and what a listener sees of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq import ConsumerOptions, Message, MessageQueue, ReceivedMessage
from minimq.consuming.received import EncodedRecords, ReceivedBatch
from minimq.features.dead_letters.dead_letter import DeadLetter
from minimq.features.listeners.redelivery import copy_of, dead_letter_of, from_copy, redelivered
from minimq.features.listeners.retries import RetryRule
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


def test_a_copy_looks_like_its_message_but_for_the_tries() -> None:
    original = received(Message("orders", b"body", "tag", ("k1", "k2"), {"a": "1"}))
    again = from_copy(received(copy_of(original, "%RETRY%g"), queue_offset=1, producer_id=6))
    assert (again.topic, again.body, again.tag, again.keys) == ("orders", b"body", "tag", ("k1", "k2"))
    assert again.properties == {"a": "1"}
    assert (again.message_id, again.born_at) == (original.message_id, original.born_at)
    assert (again.queue, again.queue_offset) == (MessageQueue("%RETRY%g", "broker-a", 2), 1)
    assert (original.delivery_count, again.delivery_count) == (1, 2)


@given(st.dictionaries(NAMES, st.text(max_size=3), max_size=5), st.integers(1, 4))
def test_properties_are_the_same_after_any_number_of_copies(properties: dict[str, str], copies: int) -> None:
    original = message = received(Message("orders", b"body", properties=properties))
    for number in range(copies):
        message = from_copy(received(copy_of(message, "%RETRY%g"), producer_id=6 + number))
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
        message = from_copy(received(copy_of(message, "%RETRY%g")))
    assert message.message_group == message_group
    assert message.properties == {"MESSAGE_GROUP": message_group or "mine"}


def test_a_dead_letter_of_one_group_is_an_ordinary_message_of_another() -> None:
    original = received(Message("orders", b"body", properties={"a": "1"}))
    dead = received(dead_letter_of(original, "g", "rejected", 1))
    again = from_copy(received(copy_of(dead, "%RETRY%other"), producer_id=6))
    assert again.topic == "%DLQ%g"
    assert again.properties == dead.properties
    assert again.properties["RETRY_TOPIC"] == "orders"


@pytest.mark.parametrize("copied", [False, True])
def test_a_dead_letter_tells_why_and_where_from(copied: bool) -> None:
    original = message = received(Message("orders", b"body", properties={"CONSUMER_GROUP": "mine"}))
    if copied:
        message = from_copy(received(copy_of(message, "%RETRY%g"), queue_offset=1, producer_id=6))
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


@pytest.mark.parametrize("copied", [False, True])
def test_tries_here_and_by_copies_add_up(copied: bool) -> None:
    message = received(Message("orders", b"body", properties={"RETRY_TOPIC": "mine"}))
    if copied:
        message = from_copy(received(copy_of(message, "%RETRY%g")))
    before = message.delivery_count
    twice = redelivered(redelivered(message))
    assert twice.delivery_count == before + 2
    assert twice.properties == {"RETRY_TOPIC": "mine"}
    assert (twice.topic, twice.message_id) == (message.topic, message.message_id)
    assert from_copy(received(copy_of(twice, "%RETRY%g"))).delivery_count == before + 3


def test_how_long_a_message_waits() -> None:
    rule = RetryRule(ConsumerOptions(retry_delays_s=(0.5, 30, 60)))
    message = received(Message("orders", b"body"))
    assert [rule.level(redelivered(message, times), None) for times in range(5)] == [0, 1, 2, 2, 2]
    assert [rule.level(redelivered(message), chosen) for chosen in (0, 2, 9)] == [0, 2, 2]
    assert [rule.delay_ms(queue_id) for queue_id in range(4)] == [500, 30_000, 60_000, 60_000]


@for_each("text", ["9" * 30, "9" * 5000, "-1", "", "1e3"])
def test_numbers_that_no_copy_has_count_as_none(text: str) -> None:
    copy = copy_of(received(Message("orders", b"body")), "%RETRY%g")
    forged = Message(copy.topic, copy.body, properties={**copy.properties, "ORIGIN_BORN": text, "DELIVERY_COUNT": text})

    message = from_copy(received(forged))

    assert message.delivery_count == 1
    assert message.born_at.year < 9999
    assert copy_of(redelivered(message), "%RETRY%g").properties["DELIVERY_COUNT"] == "2"


def test_a_dead_letter_tells_whether_its_messages_were_received_one_by_one() -> None:
    original = received(Message("orders", b"body", properties={"WORK_QUEUE": "mine"}))
    popped = WorkQueueMessage(original.batch, original.index, original.body, original.tag, 1, 9, "g")
    for message, of_work_queue in ((original, False), (popped, True)):
        letter = DeadLetter(received(dead_letter_of(message, "g", "rejected", 1)))
        assert letter.of_work_queue is of_work_queue
        assert letter.properties == {"WORK_QUEUE": "mine"}
