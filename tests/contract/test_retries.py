"""Messages that a listener fails to process: the same with leased queues and with a work queue."""

from __future__ import annotations

from itertools import pairwise

import pytest

from contract.case import Case, bodies
from minimq import ConsumeResult, RetryLater
from support.waiting import wait_until

pytestmark = pytest.mark.kinds("listener", "work_listener")


def test_a_listener_that_raises_gets_its_message_again(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1", tag="t", keys=["k"], properties={"a": "1"})
    receiver = case.receiver(topic, group=group)
    [first] = receiver.take()
    receiver.end([first], ZeroDivisionError())
    case.disturb()
    [again] = receiver.take()
    assert (again.topic, again.body) == (topic, b"1")
    assert again.delivery_count >= 2  # a delivery that is lost with its broker counts
    assert (again.tag, again.keys, again.properties) == ("t", ("k",), {"a": "1"})
    assert (again.message_id, again.born_at) == (first.message_id, first.born_at)
    receiver.finish([again])
    wait_until(lambda: case.admin.describe_group(group).retrying == 0, what="no retries")


def test_a_listener_retries_only_some_of_its_messages(case: Case) -> None:
    topic = case.topic()
    case.producer.send_many(case.messages(topic, b"1", b"2", b"3"))
    receiver = case.receiver(topic, batch_size=3)
    call = receiver.take(3)
    receiver.end(call[:1], RetryLater(indexes=[1]))
    case.disturb()
    again = receiver.take()
    assert bodies(again) == [call[1].body]
    receiver.end(again, ConsumeResult.SUCCESS)
    case.check_at_end(topic, receiver)


def test_deliveries_are_counted_from_1_and_their_delays_grow(case: Case) -> None:
    topic, delays_s = case.topic(), (0.2, 0.4, 0.6)
    case.send(topic, b"1")
    receiver = case.receiver(topic, retry_delays_s=delays_s)
    counts, taken = [], []
    for _ in range(4):
        [message] = receiver.take()
        taken.append(receiver.taken_at)
        counts.append(message.delivery_count)
        receiver.fail([message])
    assert counts == [1, 2, 3, 4]
    for (earlier, later), delay_s in zip(pairwise(taken), delays_s, strict=True):
        assert later - earlier >= delay_s - 0.01


def test_a_result_selects_its_delay(case: Case) -> None:
    topic = case.topic()
    case.send(topic, b"1")
    receiver = case.receiver(topic, retry_delays_s=(3600, 0.2))
    receiver.end(receiver.take(), RetryLater(level=1))
    [again] = receiver.take()
    assert again.delivery_count == 2
    receiver.finish([again])


def test_retries_go_on_with_the_next_member(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1")
    with case.receiver(topic, group=group) as former:
        former.fail(former.take())
        former.fail(former.take())
    case.disturb()
    receiver = case.receiver(topic, group=group)
    [again] = receiver.take()
    assert again.body == b"1"
    assert again.delivery_count >= 3
    receiver.finish([again])


def test_a_dead_letter_says_where_its_message_was_and_how_often_it_failed(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    [receipt] = case.send(topic, b"bad")
    receiver = case.receiver(topic, group=group, max_deliveries=3)
    for _ in range(3):
        receiver.end(receiver.take(), ValueError())
    case.disturb()
    [letter] = case.dead_letters(group)
    assert (letter.topic, letter.reason, letter.delivery_count) == (topic, "listener raised ValueError", 3)
    assert (letter.origin_queue, letter.origin_offset) == (receipt.queue, receipt.queue_offset)
    assert letter.message_id == receipt.message_id


def test_with_one_delivery_there_is_no_retry(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"bad")
    receiver = case.receiver(topic, group=group, max_deliveries=1)
    receiver.fail(receiver.take())
    [letter] = case.dead_letters(group)
    assert letter.delivery_count == 1
    case.check_at_end(topic, receiver)


def test_a_dead_letter_is_resent_to_its_group_alone(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1")
    receiver = case.receiver(topic, group=group, max_deliveries=2)
    for _ in range(2):
        receiver.fail(receiver.take())
    case.dead_letters(group)
    case.disturb()
    assert case.admin.resend_dead_letters(group, only_group=True) == 1
    for count in (1, 2):
        [again] = receiver.take()
        assert (again.topic, again.body, again.delivery_count) == (topic, b"1", count)
        receiver.fail([again])
    [letter] = case.dead_letters(group)
    assert (letter.topic, letter.delivery_count) == (topic, 2)
    assert case.stored(topic) == [b"1"]
