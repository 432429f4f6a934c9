"""Transactions at a real broker, by its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from minimq import LocalCluster
from minimq_common.errors import TransactionEnded, TransactionExpired
from support.kernel_stores import numbered_batch
from support.raw_transactions import RawTransactions, decision
from support.reading import read_all

A = "broker-a"

_producers = count(0xDEC0001)


@pytest.fixture
def producer_id() -> int:
    """One that no other test has."""
    return next(_producers)


@pytest.fixture
def transactions(cluster: LocalCluster, topic: str, new_name: Callable[[], str]) -> Iterator[RawTransactions]:
    """Of a name of its own, at the first broker."""
    with RawTransactions(cluster.brokers[0].address, new_name(), topic) as made:
        yield made


def stored(cluster: LocalCluster, topic: str) -> list[bytes]:
    return [message.body for message in read_all(cluster.nameserver, topic)]


def test_a_number_has_one_decision(
    cluster: LocalCluster, transactions: RawTransactions, topic: str, producer_id: int
) -> None:
    for number in range(2):
        transactions.stage(number, [(0, numbered_batch(producer_id, number))])
    first = decision(1, {A: {producer_id: [1]}})
    assert transactions.commit(first) == first
    for other in (first, decision(1, {A: {producer_id: [0]}}), decision(0, {A: {producer_id: [0]}}), decision(1, {})):
        assert transactions.commit(other) == first
    assert len(stored(cluster, topic)) == 1
    assert transactions.describe().staged_batches == 0
    [late] = transactions.stage(1, [(0, numbered_batch(producer_id, 2))])
    assert late.failure.code == TransactionEnded.code


def test_what_is_not_staged_cannot_be_committed(
    cluster: LocalCluster, transactions: RawTransactions, topic: str, producer_id: int
) -> None:
    transactions.stage(0, [(0, numbered_batch(producer_id, 0))])
    with pytest.raises(TransactionExpired, match="broker-a has dropped 2 of the batches of transaction 0"):
        transactions.commit(decision(0, {A: {producer_id: [0, 1], producer_id + 1: [0]}}))
    assert not transactions.is_decided()
    transactions.commit(decision(0, {A: {producer_id: [0]}}))
    assert len(stored(cluster, topic)) == 1
