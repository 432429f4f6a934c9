"""Messages that failed too often."""

from __future__ import annotations

import pytest

from contract.case import Case
from support.waiting import wait_until

pytestmark = pytest.mark.kinds("listener", "work_queue", "work_listener")


def test_a_resent_dead_letter_is_delivered_and_deleted(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1", keys=["o-17"])
    receiver = case.receiver(topic, group=group, max_deliveries=1)
    receiver.fail(receiver.take())
    case.check_at_end(topic, receiver)
    case.dead_letters(group)
    case.disturb()
    assert case.admin.resend_dead_letters(group) == 1
    [again] = receiver.take()
    assert (again.body, list(again.keys)) == (b"1", ["o-17"])
    receiver.finish([again])
    wait_until(lambda: not list(case.admin.dead_letters(group)), what="no dead letter")


def test_a_deleted_dead_letter_is_gone(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1")
    receiver = case.receiver(topic, group=group, max_deliveries=1)
    receiver.fail(receiver.take())
    case.check_at_end(topic, receiver)
    case.dead_letters(group)
    case.disturb()
    assert case.admin.delete_dead_letters(group, all=True) == 1
    assert list(case.admin.dead_letters(group)) == []
    case.check_at_end(topic, receiver)


def test_after_max_deliveries_a_message_becomes_a_dead_letter(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"bad")
    receiver = case.receiver(topic, group=group, max_deliveries=2)
    for _ in range(2):
        receiver.fail(receiver.take())
    case.disturb()
    case.check_at_end(topic, receiver)
    [letter] = case.dead_letters(group)
    assert (letter.body, letter.topic) == (b"bad", topic)
