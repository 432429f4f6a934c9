"""All of a transaction, or nothing of it."""

from __future__ import annotations

import pytest

from contract.case import Case, bodies
from minimq import Message, TransactionResolution


class Unwanted(Exception):
    """Ends a block."""


@pytest.mark.kinds
def test_messages_of_a_transaction_are_stored_together(case: Case) -> None:
    topics = [case.topic(), case.topic()]
    with case.producer.transaction() as transaction:
        for topic in topics:
            transaction.send(Message(topic, b"1"))
        case.disturb()
        assert [case.stored(topic) for topic in topics] == [[], []]
    assert [case.stored(topic) for topic in topics] == [[b"1"], [b"1"]]


@pytest.mark.kinds
def test_a_block_that_raises_stores_nothing(case: Case) -> None:
    topic = case.topic()
    with pytest.raises(Unwanted), case.producer.transaction() as transaction:  # noqa: PT012
        transaction.send(Message(topic, b"1"))
        case.disturb()
        raise Unwanted
    case.send(topic, b"2")
    assert case.stored(topic) == [b"2"]


@pytest.mark.kinds("pull", "work_queue")
def test_consumed_messages_and_results_are_stored_together(case: Case) -> None:
    source, target, group = case.topic(), case.topic(), case.new_name()
    case.send(source, b"1")
    with case.receiver(source, group=group) as receiver:
        with case.producer.transaction(receiver.consumer) as transaction:
            [message] = transaction.receive(timeout=30.0)
            transaction.send(Message(target, b"result of " + message.body))
            case.disturb()
        assert case.stored(target) == [b"result of 1"]
    case.check_at_end(source, case.receiver(source, group=group))


@pytest.mark.kinds("pull", "work_queue")
def test_messages_come_again_after_a_rollback(case: Case) -> None:
    source, target = case.topic(), case.topic()
    case.send(source, b"1")
    receiver = case.receiver(source)
    with pytest.raises(Unwanted), case.producer.transaction(receiver.consumer) as transaction:  # noqa: PT012
        [message] = transaction.receive(timeout=30.0)
        transaction.send(Message(target, message.body))
        case.disturb()
        raise Unwanted
    assert bodies(receiver.take()) == [b"1"]
    assert case.stored(target) == []


@pytest.mark.kinds
@pytest.mark.parametrize("commits", [True, False])
def test_half_messages_appear_if_their_block_ends_well(case: Case, commits: bool) -> None:
    topic = case.topic()
    producer = case.make("TransactionalProducer", group=case.new_name(), check=lambda _: TransactionResolution.UNKNOWN)
    with producer.transaction() as transaction:
        transaction.send(Message(topic, b"1"))
        case.disturb()
        assert case.stored(topic) == []
        if not commits:
            transaction.rollback()
    assert case.stored(topic) == ([b"1"] if commits else [])


@pytest.mark.kinds
@pytest.mark.parametrize("resolution", [TransactionResolution.COMMIT, TransactionResolution.ROLLBACK])
def test_an_operator_ends_a_transaction(case: Case, resolution: TransactionResolution) -> None:
    topic, group = case.topic(), case.new_name()
    producer = case.make("TransactionalProducer", group=group, check=lambda _: TransactionResolution.UNKNOWN)
    transaction = producer.transaction()
    transaction.__enter__()
    transaction.send(Message(topic, b"1"))
    case.disturb()
    [found] = case.admin.list_transactions(group).transactions
    case.admin.end_transaction(group, found.number, resolution)
    case.send(topic, b"2")
    assert case.stored(topic) == ([b"1", b"2"] if resolution is TransactionResolution.COMMIT else [b"2"])
