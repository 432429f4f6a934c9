"""The promises of a receipt, and rejected messages."""

from __future__ import annotations

from typing import Any

import pytest

from contract.case import Case, bodies
from minimq import Message, MessageQueue, Permission, by_hash
from minimq.errors import (
    Closed,
    InvalidArgument,
    MessageTooLarge,
    MinimqError,
    QueueNotFound,
    SendFailed,
    TopicNotFound,
)
from support.reading import read_all
from support.waiting import wait_until

pytestmark = pytest.mark.kinds()


def test_receipts_have_gapless_offsets(case: Case) -> None:
    topic = case.topic()
    assert [receipt.queue_offset for receipt in case.send(topic, b"1", b"2")] == [0, 1]
    case.disturb()
    assert [receipt.queue_offset for receipt in case.send(topic, b"3")] == [2]
    assert case.stored(topic) == [b"1", b"2", b"3"]


def test_messages_that_are_sent_during_a_fault_are_stored_once(case: Case) -> None:
    topic = case.topic()
    futures = [case.producer.send_async(Message(topic, b"%d" % number)) for number in range(100)]
    case.disturb()
    futures += [case.producer.send_async(Message(topic, b"%d" % number)) for number in range(100, 200)]
    assert len({future.result().message_id for future in futures}) == 200
    assert sorted(case.stored(topic)) == sorted(b"%d" % number for number in range(200))


def test_a_flush_waits_for_all_receipts(case: Case) -> None:
    topic = case.topic(queues=2)
    for number in range(50):
        case.producer.send_async(Message(topic, b"%d" % number))
    case.disturb()
    case.producer.flush()
    assert len(case.stored(topic)) == 50


def test_closing_a_producer_sends_what_it_has(case: Case) -> None:
    topic = case.topic()
    producer = case.make("Producer")
    for number in range(50):
        producer.send_async(Message(topic, b"%d" % number))
    case.disturb()
    producer.close()
    assert len(case.stored(topic)) == 50
    with pytest.raises(Closed):
        producer.send(Message(topic, b"late"))


def test_messages_that_are_sent_one_way_are_stored(case: Case) -> None:
    topic = case.topic()
    case.disturb()
    case.producer.send_one_way(Message(topic, b"1"))
    wait_until(lambda: case.stored(topic) == [b"1"], what="the message")


def test_messages_go_to_all_queues_in_turn(case: Case) -> None:
    topic = case.topic(queues=4)
    case.disturb()
    receipts = case.send(topic, *(b"%d" % number for number in range(8)))
    queue_ids = [receipt.queue.queue_id for receipt in receipts]
    assert sorted(queue_ids[:4]) == sorted(queue_ids[4:]) == [0, 1, 2, 3]


def test_a_key_keeps_its_queue(case: Case) -> None:
    topic = case.topic(queues=4)

    def queues() -> dict[str, MessageQueue]:
        messages = [Message(topic, b"", keys=[f"k-{number}"]) for number in range(20)]
        return {each.keys[0]: case.producer.send(each, selector=by_hash()).queue for each in messages}

    before = queues()
    case.disturb()
    assert queues() == before
    assert len({*before.values()}) > 1


def test_a_message_goes_to_the_queue_that_is_named(case: Case) -> None:
    topic = case.topic(queues=3)
    queue = MessageQueue(topic, "broker-a", 2)
    case.disturb()
    assert case.producer.send(Message(topic, b"1"), queue=queue).queue == queue


def test_many_messages_keep_their_order_in_a_queue(case: Case) -> None:
    topic = case.topic()
    sent = [b"%d" % number for number in range(3_000)]
    receipts = case.producer.send_many([Message(topic, body) for body in sent[:1_500]])
    case.disturb()
    receipts += case.producer.send_many([Message(topic, body) for body in sent[1_500:]])
    assert [receipt.queue_offset for receipt in receipts] == [*range(3_000)]
    assert case.stored(topic) == sent


def check_rejected(case: Case, message: Message, error: type[MinimqError], **options: Any) -> None:
    with pytest.raises(error):
        case.producer.send(message, **options)


def test_invalid_messages_are_rejected_and_not_stored(case: Case) -> None:
    topic = case.topic()
    case.disturb()
    check_rejected(case, Message(topic, bytes((4 << 20) + 1)), MessageTooLarge)
    check_rejected(case, Message(topic, b"", keys=[""]), InvalidArgument)
    check_rejected(case, Message(topic, b"", tag="a" * 256), InvalidArgument)
    check_rejected(case, Message(topic, b"", message_group="g"), InvalidArgument)
    check_rejected(case, Message(topic, b"", deliver_after_s=367 * 86_400), InvalidArgument)
    check_rejected(case, Message("no-such-topic", b""), TopicNotFound)
    check_rejected(case, Message(topic, b""), QueueNotFound, queue=MessageQueue(topic, "broker-a", 9))
    assert case.stored(topic) == []


def test_a_read_only_topic_rejects_messages_and_can_be_read(case: Case) -> None:
    topic = case.topic()
    case.send(topic, b"1")
    case.admin.update_topic(topic, permission=Permission.READ)
    case.disturb()
    with pytest.raises(SendFailed) as failed:
        case.make("Producer", send_timeout_s=1.0).send(Message(topic, b"2"))
    assert failed.value.not_stored == 1
    assert case.stored(topic) == [b"1"]
    case.admin.update_topic(topic, permission=Permission.READ | Permission.WRITE)
    wait_until(lambda: case.sent(topic, b"3"), what="a topic that is writable again")


def test_a_deleted_topic_rejects_messages_and_a_new_one_is_empty(case: Case) -> None:
    topic = case.topic()
    case.send(topic, b"1")
    case.admin.delete_topic(topic)
    check_rejected(case, Message(topic, b"2"), TopicNotFound)
    case.disturb()
    case.admin.create_topic(topic, queues=1)
    wait_until(lambda: case.sent(topic, b"3"), what="the new topic")
    assert case.stored(topic) == [b"3"]


def test_a_message_is_found_by_its_key_its_id_and_its_place(case: Case) -> None:
    topic = case.topic()
    [receipt, _] = case.send(topic, b"1", b"2", keys=["o-17"])
    case.send(topic, b"3", keys=["o-18"])
    case.disturb()
    assert bodies(case.admin.find_messages(topic, key="o-17").messages) == [b"1", b"2"]
    assert bodies(case.admin.find_messages(topic, message_id=receipt.message_id).messages) == [b"1"]
    assert case.admin.message_at(f"{topic}/broker-a/0@1").body == b"2"


def test_offsets_are_found_by_time(case: Case) -> None:
    topic = case.topic()
    [first] = case.send(topic, b"1")
    case.disturb()
    case.send(topic, b"2")
    stored = read_all(case.nameserver, topic)[1].stored_at
    assert stored is not None
    assert case.admin.offset_at(first.queue, stored) == 1
