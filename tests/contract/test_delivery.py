"""Deliveries and redeliveries, and the messages that a subscription selects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import minimq
from contract.case import Case, bodies
from minimq import Message, ReceivedMessage
from minimq.errors import GroupConflict
from support.waiting import wait_until


def test_messages_arrive_in_the_order_of_their_queue(case: Case) -> None:
    topic = case.topic()
    case.send(topic, b"1", b"2", b"3")
    receiver = case.receiver(topic)
    assert bodies(receiver.take(2)) == [b"1", b"2"]
    case.disturb()
    case.send(topic, b"4")
    assert b"4" in bodies(receiver.take(2))


def test_all_fields_of_a_message_arrive(case: Case) -> None:
    topic = case.topic()
    [receipt] = case.send(topic, b"\x00\xff", tag="paid", keys=["o-17", "o-18"], properties={"region": "eu", "ä": "ß"})
    case.disturb()
    [message] = case.receiver(topic).take()
    assert (message.topic, message.body, message.tag) == (topic, b"\x00\xff", "paid")
    assert (list(message.keys), dict(message.properties)) == (["o-17", "o-18"], {"region": "eu", "ä": "ß"})
    assert (message.message_id, message.queue, message.queue_offset) == (receipt.message_id, receipt.queue, 0)


def test_finished_messages_do_not_come_again_to_the_next_member(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1", b"2", b"3")
    with case.receiver(topic, group=group) as former:
        former.finish(former.take(3))
    case.disturb()
    case.check_at_end(topic, case.receiver(topic, group=group))


def test_an_unfinished_message_comes_again_to_the_next_member(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1", b"2")
    with case.receiver(topic, group=group) as former:
        former.finish(former.take(1))
        former.take(1)
    case.disturb()
    receiver = case.receiver(topic, group=group)
    again = receiver.take()
    assert bodies(again) == [b"2"]
    receiver.finish(again)
    case.check_at_end(topic, receiver)


def test_a_failed_message_comes_again_with_its_fields(case: Case) -> None:
    topic = case.topic()
    case.send(topic, b"1", tag="paid", keys=["o-17"], properties={"region": "eu"})
    receiver = case.receiver(topic)
    receiver.fail(receiver.take())
    case.disturb()
    [again] = receiver.take()
    assert (again.topic, again.body, again.tag, list(again.keys)) == (topic, b"1", "paid", ["o-17"])
    assert again.properties["region"] == "eu"
    receiver.finish([again])
    case.check_at_end(topic, receiver)


@pytest.mark.kinds("listener", "work_queue")
def test_the_delivery_count_counts(case: Case) -> None:
    topic = case.topic()
    case.send(topic, b"1")
    receiver = case.receiver(topic)
    for count in (1, 2, 3):
        [message] = receiver.take()
        assert message.delivery_count == count
        receiver.fail([message])
    case.disturb()
    [message] = receiver.take()
    assert message.delivery_count >= 4  # a delivery that is lost with its broker counts


def test_two_groups_get_every_message(case: Case) -> None:
    topic = case.topic()
    case.send(topic, b"1", b"2")
    one, other = case.receiver(topic), case.receiver(topic)
    case.disturb()
    assert sorted(bodies(one.take(2))) == sorted(bodies(other.take(2))) == [b"1", b"2"]


def test_members_of_a_group_share_the_messages(case: Case) -> None:
    topic, group = case.topic(queues=4), case.new_name()
    members = [case.receiver(topic, group=group) for _ in range(2)]
    if case.kind != "work_queue":
        wait_until(lambda: [*map(case.assigned, members)] == [2, 2], what="two queues each")
    case.send(topic, *(b"%d" % number for number in range(8)))
    case.disturb()
    [one], [other] = (member.take() for member in members)
    assert one.body != other.body


@pytest.mark.parametrize(("tags", "expected"), [("a", [b"a"]), ("a || b", [b"a", b"b"]), ("*", [b"a", b"b", b"c"])])
def test_tags_select(case: Case, tags: str, expected: list[bytes]) -> None:
    topic = case.topic()
    for tag in ("a", "b", "c"):
        case.send(topic, tag.encode(), tag=tag)
    case.disturb()
    assert sorted(bodies(case.receiver(topic, tags=tags).take(len(expected)))) == expected


def test_a_filter_of_properties_selects(case: Case) -> None:
    topic = case.topic()
    for region in ("eu", "us", "eu"):
        case.send(topic, region.encode(), properties={"region": region})
    case.disturb()
    assert bodies(case.receiver(topic, where="region = 'eu'").take(2)) == [b"eu", b"eu"]


def test_latest_begins_after_start(case: Case) -> None:
    topic = case.topic()
    case.send(topic, b"before")
    receiver = case.receiver(topic, start="latest")
    case.start(receiver)
    case.disturb()
    case.send(topic, b"after")
    assert bodies(receiver.take()) == [b"after"]


@pytest.mark.kinds("pull", "listener")
def test_messages_of_several_topics_arrive(case: Case) -> None:
    topics = [case.topic(), case.topic()]
    receiver = case.receiver(*topics)
    for topic in topics:
        case.send(topic, topic.encode())
    case.disturb()
    assert {message.topic for message in receiver.take(2)} == {*topics}


def test_messages_of_new_queues_arrive(case: Case) -> None:
    topic = case.topic()
    receiver = case.receiver(topic)
    case.send(topic, b"1")
    receiver.finish(receiver.take())
    case.admin.update_topic(topic, queues=3)
    case.disturb()
    sent = {case.send_to(topic, queue_id, b"new") for queue_id in (1, 2)}
    assert {message.queue for message in receiver.take(2)} == sent


def test_a_group_begins_at_a_time(case: Case) -> None:
    topic = case.topic()
    [before] = case.send(topic, b"before")
    wait_until(lambda: datetime.now(UTC) > before.stored_at + timedelta(milliseconds=2))
    [after] = case.send(topic, b"after")
    case.disturb()
    assert bodies(case.receiver(topic, start=after.stored_at).take()) == [b"after"]


@pytest.mark.kinds("pull", "listener")
def test_a_group_reads_again_after_a_reset(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1", b"2")
    with case.receiver(topic, group=group) as receiver:
        receiver.finish(receiver.take(2))
    case.admin.reset_offset(group, topic, to="earliest")
    case.disturb()
    assert bodies(case.receiver(topic, group=group).take(2)) == [b"1", b"2"]


def test_a_group_reads_from_the_start_after_its_deletion(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1")
    with case.receiver(topic, group=group) as receiver:
        receiver.finish(receiver.take())
    wait_until(lambda: not case.members(group))
    case.admin.delete_group(group)
    case.disturb()
    assert bodies(case.receiver(topic, group=group).take()) == [b"1"]


@pytest.mark.kinds("pull", "listener")
def test_another_member_gets_the_queues_of_one_that_leaves(case: Case) -> None:
    topic, group = case.topic(queues=2), case.new_name()
    staying = case.receiver(topic, group=group)
    with case.receiver(topic, group=group) as leaving:
        wait_until(lambda: [*map(case.assigned, (staying, leaving))] == [1, 1], what="a queue each")
    case.disturb()
    sent = {case.send_to(topic, queue_id, b"later") for queue_id in (0, 1)}
    assert {message.queue for message in staying.take(2)} == sent


def test_five_thousand_messages_arrive_once_and_in_order(case: Case) -> None:
    topic = case.topic(queues=2)
    sent = [b"%d" % number for number in range(5_000)]
    receipts = case.producer.send_many([Message(topic, body) for body in sent])
    assert len(receipts) == 5_000
    options: dict[str, Any] = {"threads": 1, "batch_size": 5_000} if case.kind == "listener" else {}
    receiver = case.receiver(topic, **options)
    case.disturb()
    arrived: list[ReceivedMessage] = []
    while len(arrived) < 5_000:
        found = receiver.take(1) if case.kind == "listener" else receiver.take(500)
        receiver.finish(found)
        arrived += found
    assert len({message.body for message in arrived}) == 5_000
    if case.kind != "listener":
        for queue in {message.queue for message in arrived}:
            offsets = [message.queue_offset for message in arrived if message.queue == queue]
            assert offsets == sorted(offsets)


@pytest.mark.parametrize("body", [b"", bytes(1 << 20)], ids=["empty", "1 MiB"])
def test_bodies_of_any_size_arrive(case: Case, body: bytes) -> None:
    topic = case.topic()
    case.send(topic, body)
    case.disturb()
    assert bodies(case.receiver(topic).take()) == [body]


def test_compressed_batches_arrive(case: Case) -> None:
    topic = case.topic()
    producer = case.make("Producer", compression="zstd")
    producer.send_many([Message(topic, b"x" * 8_000 + b"%d" % number) for number in range(20)])
    case.disturb()
    assert sorted(len(body) for body in bodies(case.receiver(topic).take(20))) == [8_001] * 10 + [8_002] * 10


def test_a_group_cannot_be_of_two_kinds(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1")
    receiver = case.receiver(topic, group=group)
    receiver.take()
    case.disturb()

    def is_member() -> int:
        case.poll(receiver)  # a consumer that does not receive cannot connect to another master
        return case.members(group)

    wait_until(is_member, what="the member")
    with pytest.raises(GroupConflict):
        case.poll_as_other_kind(topic, group)


def test_delayed_messages_arrive_when_they_are_due(case: Case) -> None:
    topic = case.topic()
    receiver = case.receiver(topic)
    [late] = case.send(topic, b"late", deliver_after_s=2.0)
    [receipt] = case.send(topic, b"now")
    assert late.queue_offset == -1
    assert late.due_at is not None
    assert late.due_at > receipt.stored_at
    now = receiver.take()
    receiver.finish(now)
    assert bodies(now) == [b"now"]
    case.disturb()
    [message] = receiver.take()
    assert message.body == b"late"
    assert message.stored_at is not None
    assert message.stored_at >= late.due_at
    receiver.finish([message])
    case.check_at_end(topic, receiver)


def test_a_recalled_message_does_not_arrive(case: Case) -> None:
    topic = case.topic()
    receiver = case.receiver(topic)
    [recalled, kept] = [
        *case.send(topic, b"never", deliver_after_s=3.0, recallable=True),
        *case.send(topic, b"kept", deliver_after_s=3.0),
    ]
    assert case.producer.recall(recalled.recall_handle) is minimq.RecallResult.RECALLED
    case.disturb()
    arrived = receiver.take()
    assert bodies(arrived) == [b"kept"]
    receiver.finish(arrived)
    case.check_at_end(topic, receiver)
    assert kept.recall_handle is None
