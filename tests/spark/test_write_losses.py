"""Errors about rows that cannot be stored, or that are lost; without Spark, as in test_write_endings.py."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from minimq import Admin, LocalCluster, Permission
from minimq.features.transactions.decisions import Transaction
from minimq.local.server_process import BrokerProcess
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.option_table import Mode
from pyspark_minimq.sink import MinimqStreamWriter, MinimqWriter
from pyspark_minimq.task_commit import TaskCommit
from pyspark_minimq.write_options import parse_write_options
from support.raw_transactions import RawTransactions, decision
from support.reading import read_all

# ---- Brokers that come back with nothing, and topics that are deleted ------------------------------


class Query:
    """A streaming query against two brokers, with the calls that Spark makes for micro-batches."""

    def __init__(self, cluster: LocalCluster, admin: Admin) -> None:
        self.admin = admin
        self.first, self.second = cluster.brokers
        self._nameserver = cluster.nameserver

    def writer(self, number: int, **options: str) -> MinimqStreamWriter:
        """Return a writer of which a task finds itself in a micro-batch."""

        class Writer(MinimqStreamWriter):
            def transaction(self) -> Transaction:
                return Transaction("spark-query", number)

        given = {"nameserver": self._nameserver, "topic": "t", "commitTimeout": "1s", **options}
        return Writer(parse_write_options(given, Mode.STREAM))

    def write(self, number: int, rows: dict[str, int], **options: str) -> None:
        """Run a micro-batch from its tasks to its commit."""
        writer = self.writer(number, **options)
        writer.commit([stage(writer, rows)], number)

    def rejection(self, number: int, rows: dict[str, int] | TaskCommit, **options: str) -> str:
        """Return why the commit of a micro-batch fails."""
        writer = self.writer(number, **options)
        message = rows if isinstance(rows, TaskCommit) else stage(writer, rows)
        with pytest.raises(MinimqSparkError) as caught:
            writer.commit([message], number)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def stored(self) -> list[int]:
        return sorted(int(message.body) for message in read_all(self._nameserver, "t"))


def stage(writer: MinimqWriter, rows: dict[str, int]) -> TaskCommit:
    """Do what a task does whose rows are a number for each of some brokers."""
    batch = pa.RecordBatch.from_pydict(
        {
            "body": pa.array([b"%d" % row for row in rows.values()]),
            "broker_name": pa.array(list(rows)),
            "queue_id": pa.array([0] * len(rows)),
        }
    )
    message = writer.write(iter([batch]))
    assert isinstance(message, TaskCommit)
    return message


def lose_everything(broker: BrokerProcess) -> None:
    """Start a broker anew whose disk is another one."""
    if broker.running:
        broker.kill()
    shutil.rmtree(broker.data_dir)
    broker.start()


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Query]:
    with LocalCluster(brokers=2, data_dir=tmp_path) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("t", queues=1)
        yield Query(cluster, admin)


def decide(broker: BrokerProcess, written: TaskCommit) -> None:
    """Decide at one broker alone, as does a query that dies then."""
    assert written.transaction is not None
    parts = {part.broker_name: {part.producer_id: part.sequences} for part in written.parts}
    with RawTransactions(broker.address, written.transaction.name) as transactions:
        transactions.commit(decision(written.transaction.number, parts))


@pytest.mark.parametrize(("accepted", "loser"), [("true", "broker-a"), ("false", "broker-a"), ("false", "broker-b")])
def test_what_is_lost_before_it_is_decided_is_written_anew(query: Query, accepted: str, loser: str) -> None:
    staged = stage(query.writer(3), {"broker-a": 1, "broker-b": 2})
    lose_everything(query.first if loser == "broker-a" else query.second)
    text = query.rejection(3, staged, failOnDataLoss=accepted)
    assert f"transaction 'spark-query' number 3 is not decided: broker {loser} has dropped 1 of its batches" in text
    assert text.endswith("nothing of it is published; restart the query, which repeats this micro-batch")
    assert query.stored() == []
    query.admin.create_topic("t", queues=1)
    query.write(3, {"broker-a": 1, "broker-b": 2})
    assert query.stored() == [1, 2]


def test_what_is_lost_after_it_was_decided_can_be_given_up(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    staged = stage(query.writer(3), {"broker-a": 1, "broker-b": 2})
    decide(query.first, staged)
    lose_everything(query.second)
    query.admin.create_topic("t", queues=1)
    # Broker-a has decided, whether the rows of a repetition go there or not.
    for again in (staged, {"broker-a": 1}, {"broker-b": 2}):
        text = query.rejection(3, again)
        assert "transaction 'spark-query' number 3 is decided, and broker broker-b has lost its part of it" in text
        assert text.endswith("with failOnDataLoss=false the query continues without it")
    assert query.stored() == [1]
    query.write(3, {"broker-b": 2}, failOnDataLoss="false")
    assert "broker broker-b has lost its part of it" in caplog.text
    assert "failOnDataLoss is false, so it is given up" in caplog.text
    query.write(4, {"broker-a": 3, "broker-b": 4})
    assert query.stored() == [1, 3, 4]


def test_a_topic_that_is_deleted_before_the_commit(query: Query) -> None:
    staged = stage(query.writer(3), {"broker-a": 1, "broker-b": 2})
    query.admin.delete_topic("t")
    assert "create it with `minimq topic create t`" in query.rejection(3, staged)
    query.admin.create_topic("t", queues=1)
    assert "nothing of it is published; restart the query" in query.rejection(3, staged)
    query.write(3, {"broker-a": 1, "broker-b": 2})
    assert query.stored() == [1, 2]


# ---- Brokers that go -----------------------------------------------------------------------------


def test_a_broker_that_is_taken_out_of_service_is_not_needed_any_more(query: Query) -> None:
    query.write(2, {"broker-a": 1, "broker-b": 2})
    query.admin.set_broker_permission("broker-b", Permission.READ)
    query.admin.delete_topic("t", brokers=["broker-b"])
    query.write(3, {"broker-a": 3})
    query.second.stop()
    query.write(4, {"broker-a": 4})
    assert query.stored() == [1, 3, 4]


@pytest.mark.parametrize("dead", ["broker-a", "broker-b"])
def test_an_empty_broker_stands_in_for_one_that_is_gone_for_good(query: Query, dead: str) -> None:
    query.write(2, {"broker-a": 1, "broker-b": 2})
    gone, other = (query.first, "broker-b") if dead == "broker-a" else (query.second, "broker-a")
    gone.kill()
    text = query.rejection(3, {other: 3})
    assert f"broker {dead}: no name server knows a master of it" in text
    assert text.endswith("to replace a broker that is gone for good, start an empty one with its name")
    lose_everything(gone)
    query.write(3, {other: 3})
    gone.stop()
    query.write(4, {other: 4})
    assert {3, 4} <= set(query.stored())
