"""Transactions at a real broker, by its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster
from minimq_common.errors import InvalidArgument, TransactionEnded, TransactionExpired
from support.raw_transactions import RawTransactions, decision
from support.reading import check_brokers, read_all
from support.stores import numbered_batch
from support.waiting import wait_until

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


def test_a_transaction_from_begin_to_end(
    cluster: LocalCluster, transactions: RawTransactions, topic: str, producer_id: int
) -> None:
    answers = transactions.stage(0, [(n % 2, numbered_batch(producer_id, n, b"%d" % n)) for n in range(3)])
    assert [(answer.base_offset, answer.queue_id) for answer in answers] == [(-1, 0), (-1, 1), (-1, 0)]
    assert all(answer.store_timestamp_ms > 0 for answer in answers)
    about = transactions.describe()
    assert not about.HasField("decision")
    assert about.staged_batches == 3
    assert about.staged_bytes > 3 * 48
    assert stored(cluster, topic) == []

    wanted = decision(0, {A: {producer_id: [0, 2]}, "elsewhere": {producer_id: [9]}})
    assert transactions.commit(wanted) == wanted
    assert stored(cluster, topic) == [b"0", b"2"]
    about = transactions.describe()
    assert (about.decision, about.staged_batches, about.staged_bytes) == (wanted, 0, 0)


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


@pytest.mark.parametrize("number", [0, 7])
def test_a_transaction_without_messages(transactions: RawTransactions, number: int) -> None:
    nothing = decision(number, {})
    assert transactions.commit(nothing) == nothing
    assert transactions.is_decided()
    assert transactions.describe().decision == nothing


def test_a_deleted_topic_cannot_be_committed_to(
    admin: Admin, transactions: RawTransactions, topic: str, producer_id: int
) -> None:
    transactions.stage(0, [(0, numbered_batch(producer_id, 0))])
    admin.delete_topic(topic)
    with pytest.raises(TransactionExpired):
        transactions.commit(decision(0, {A: {producer_id: [0]}}))


@pytest.mark.parametrize(("name", "number"), [("", 0), ("no spaces", 0), ("x" * 121, 0), ("x", -1)])
def test_names_and_numbers(cluster: LocalCluster, topic: str, name: str, number: int) -> None:
    with RawTransactions(cluster.brokers[0].address, name, topic) as transactions:
        [rejected] = transactions.stage(number, [(0, numbered_batch(1, 1))])
        assert rejected.failure.code == InvalidArgument.code
        with pytest.raises(InvalidArgument):
            transactions.commit(decision(number, {}))


def test_what_nobody_decides_on_expires(tmp_path: Path) -> None:
    options = {"transaction_expiry_s": 0.3, "metrics": "127.0.0.1:0", "log_format": "json"}
    with (
        LocalCluster(brokers=1, data_dir=tmp_path, broker_options=options) as cluster,
        Admin(cluster.nameserver) as admin,
        RawTransactions(cluster.brokers[0].address) as transactions,
    ):
        admin.create_topic("t", queues=1)
        transactions.stage(0, [(0, numbered_batch(7, 0))])
        wait_until(lambda: not transactions.describe().staged_batches, 20.0, what="the batch is let go of")
        with pytest.raises(TransactionExpired, match="has dropped 1 of the batches"):
            transactions.commit(decision(0, {A: {7: [0]}}))
        assert "dropped undecided batches" in cluster.brokers[0].log_path.read_text()
    check_brokers(cluster)
