"""Messages that are taken and settled one by one."""

from __future__ import annotations

from typing import Any

import pytest

from contract.case import Case, bodies
from minimq.errors import HandleExpired

pytestmark = pytest.mark.kinds("work_queue")


def test_a_message_that_is_taken_is_invisible_to_others(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1")
    one, other = (case.receiver(topic, group=group) for _ in range(2))
    one.take()
    case.disturb()
    case.check_at_end(topic, other)


def test_a_message_is_visible_again_after_its_invisible_duration(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1")
    one = case.receiver(topic, group=group, invisible_s=1.0, release_on_close=False)
    [former] = one.take()
    case.disturb()
    [again] = case.receiver(topic, group=group).take()
    assert (again.body, again.delivery_count) == (b"1", 2)
    with pytest.raises(HandleExpired):
        one.finish([former])


def test_an_extended_message_stays_invisible(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1")
    one = case.receiver(topic, group=group, invisible_s=1.0)
    [taken] = one.take()
    one.consumer.extend(taken, 600.0)
    case.disturb()
    [_, probe] = case.send(topic, b"probe", b"probe", deliver_after_s=1.5)
    assert probe.queue_offset == -1
    other = case.receiver(topic, group=group)
    assert bodies(other.take(2)) == [b"probe", b"probe"]
    one.finish([taken])


def test_a_message_is_acknowledged_by_its_handle(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1")
    [taken] = case.receiver(topic, group=group).take()
    case.disturb()
    other = case.receiver(topic, group=group)
    other.consumer.ack(taken.handle)
    case.check_at_end(topic, other)


def test_a_repeated_acknowledgement_is_no_error(case: Case) -> None:
    topic = case.topic()
    case.send(topic, b"1")
    receiver = case.receiver(topic)
    taken = receiver.take()
    receiver.finish(taken)
    case.disturb()
    receiver.finish(taken)
    case.check_at_end(topic, receiver)


def test_acknowledgements_that_are_not_awaited_count(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1", b"2")
    receiver = case.receiver(topic, group=group)
    futures = [receiver.consumer.ack_async(message) for message in receiver.take(2)]
    case.disturb()
    for future in futures:
        future.result(60.0)
    case.check_at_end(topic, case.receiver(topic, group=group))


def test_a_message_that_is_released_with_a_delay_comes_later(case: Case) -> None:
    topic = case.topic()
    case.send(topic, b"1")
    receiver = case.receiver(topic)
    receiver.consumer.release(receiver.take(), 1.0)
    case.send(topic, b"2")
    second = receiver.take()
    case.disturb()
    assert bodies(second) == [b"2"]
    assert bodies(receiver.take()) == [b"1"]


def test_a_rejected_message_is_a_dead_letter(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1", keys=["o-17"])
    receiver = case.receiver(topic, group=group)
    receiver.consumer.reject(receiver.take(), "no such account")
    case.disturb()
    [letter] = case.dead_letters(group)
    assert (letter.body, list(letter.keys), letter.reason) == (b"1", ["o-17"], "no such account")
    case.check_at_end(topic, receiver)


def test_a_consumer_that_closes_releases_what_it_has(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1", b"2")
    with case.receiver(topic, group=group) as receiver:
        receiver.take(2)
    case.disturb()
    assert sorted(bodies(case.receiver(topic, group=group).take(2))) == [b"1", b"2"]


def test_an_empty_queue_returns_nothing(case: Case) -> None:
    receiver = case.receiver(case.topic())
    case.disturb()
    assert receiver.consumer.receive(timeout=0.1) == []


def test_a_message_group_is_consumed_in_order_and_others_do_not_wait(case: Case) -> None:
    topic, group = case.topic(fifo=True), case.new_name()
    for message_group in ("a", "b"):
        case.send(
            topic, *(b"%s%d" % (message_group.encode(), number) for number in range(2)), message_group=message_group
        )
    receivers = [case.receiver(topic, group=group) for _ in range(2)]
    taken: list[Any] = []
    for receiver in receivers:
        taken += receiver.take()
    assert {message.body for message in taken} == {b"a0", b"b0"}
    assert receivers[0].consumer.receive(1, timeout=0.1) == []
    case.disturb()
    receivers[0].finish([message for message in taken if message.body == b"a0"])
    assert bodies(receivers[1].take()) == [b"a1"]


def test_a_failed_message_of_a_message_group_comes_before_the_next_one(case: Case) -> None:
    topic = case.topic(fifo=True)
    case.send(topic, b"1", b"2", message_group="a")
    receiver = case.receiver(topic)
    for _ in range(2):
        message = receiver.take()
        assert bodies(message) == [b"1"]
        receiver.fail(message)
        case.disturb()
    first = receiver.take()
    receiver.finish(first)
    assert bodies([*first, *receiver.take()]) == [b"1", b"2"]
