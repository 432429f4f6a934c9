"""Ends of writes, without Spark: the tests make the calls to a writer themselves, in their process."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from minimq import Admin, LocalCluster
from minimq.features.transactions.decisions import Transaction
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.option_table import Mode
from pyspark_minimq.sink import MinimqBatchWriter, MinimqStreamWriter, MinimqWriter
from pyspark_minimq.task_commit import TaskCommit
from pyspark_minimq.write_options import parse_write_options
from support.raw_transactions import RawTransactions, decision
from support.reading import read_all


class Cluster:
    """Writers for one topic, and what is in it."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self._nameserver = cluster.nameserver
        self._brokers = cluster.brokers
        self._topic = topic

    def batch(self, **options: str) -> MinimqBatchWriter:
        return MinimqBatchWriter(parse_write_options(self._options(options), Mode.BATCH))

    def stream(self, transaction: Transaction) -> MinimqStreamWriter:
        """Return a writer of which a task finds itself in a micro-batch."""

        class Writer(MinimqStreamWriter):
            def transaction(self) -> Transaction:
                return transaction

        return Writer(parse_write_options(self._options({}), Mode.STREAM))

    @contextmanager
    def transactions(self, name: str) -> Iterator[list[RawTransactions]]:
        """Yield the transactions of a name at each of the brokers."""
        with ExitStack() as stack:
            yield [stack.enter_context(RawTransactions(broker.address, name, self._topic)) for broker in self._brokers]

    def staged(self, name: str) -> int:
        """Return how many batches of a name are staged and not published."""
        with self.transactions(name) as brokers:
            return sum(broker.describe().staged_batches for broker in brokers)

    def stored(self) -> list[int]:
        return sorted(int(message.body) for message in read_all(self._nameserver, self._topic))

    def _options(self, given: dict[str, str]) -> dict[str, str]:
        return {"nameserver": self._nameserver, "topic": self._topic, **given}


@pytest.fixture
def there(cluster: LocalCluster, topic: str) -> Cluster:
    return Cluster(cluster, topic)


def stage(writer: MinimqWriter, numbers: Iterable[int]) -> TaskCommit:
    """Do what a task does, and return its message as the driver gets it. Rows go to all queues."""
    rows = list(numbers)
    keys = pa.array(rows, pa.int32())
    batch = pa.RecordBatch.from_pydict({"body": pa.array([b"%d" % row for row in rows]), "sharding_key": keys})
    message = pickle.loads(pickle.dumps(writer.write(iter([batch]))))
    assert isinstance(message, TaskCommit)
    return message


def rejection(error: pytest.ExceptionInfo[MinimqSparkError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


# ---- Micro-batches -------------------------------------------------------------------------------


def test_messages_of_another_micro_batch_are_rejected(there: Cluster) -> None:
    name = f"spark-{uuid.uuid4()}"
    four, five = (there.stream(Transaction(name, number)) for number in (4, 5))
    messages = [stage(four, range(10)), None, stage(five, range(10, 20))]
    for given, number in ((messages[:2], 5), (messages, 4), (messages, 5)):
        with pytest.raises(MinimqSparkError) as caught:
            five.commit(given, number)
        assert f"Spark commits number {number}, and its tasks have written for transaction {name!r}" in rejection(
            caught
        )
    assert there.stored() == []
    five.commit(messages[2:], 5)
    assert there.stored() == list(range(10, 20))


# ---- Batches with a name and a number ------------------------------------------------------------


@pytest.fixture
def app() -> str:
    return f"app-{uuid.uuid4()}"


def decide_at_one_broker(there: Cluster, message: TaskCommit) -> None:
    """Do what a driver has done that dies before the second broker hears of the commit."""
    assert message.transaction is not None
    parts: dict[str, dict[int, list[int]]] = {}
    for part in message.parts:
        parts.setdefault(part.broker_name, {}).setdefault(part.producer_id, []).extend(part.sequences)
    assert sorted(parts) == ["broker-a", "broker-b"]
    with there.transactions(message.transaction.name) as brokers:
        brokers[0].commit(decision(message.transaction.number, parts))


def test_a_job_that_is_started_again_ends_what_it_had_begun(
    there: Cluster, app: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = there.batch(txnAppId=app, txnVersion="7")
    decide_at_one_broker(there, stage(first, range(100)))
    assert 0 < len(there.stored()) < 100  # broker-b has not heard of it

    again = there.batch(txnAppId=app, txnVersion="7")
    messages = [stage(again, range(50)), stage(again, range(50, 100))]
    assert all(message.decided for message in messages)
    again.commit(messages)
    assert there.stored() == list(range(100))
    name = again.transaction().name
    assert f"transaction {name!r} number 7 was decided before" in caplog.text
    assert there.staged(name) == 0


def test_a_job_that_is_repeated_after_its_end_writes_nothing(
    there: Cluster, app: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = there.batch(txnAppId=app, txnVersion="0")
    first.commit([stage(first, range(100))])
    assert "was decided before" not in caplog.text
    again = there.batch(txnAppId=app, txnVersion="0")
    again.commit([None, stage(again, range(100))])
    assert there.stored() == list(range(100))
    assert "was decided before" in caplog.text
    later = there.batch(txnAppId=app, txnVersion="2")
    later.commit([stage(later, range(100, 200))])
    assert there.stored() == list(range(200))


def test_what_an_attempt_has_staged_is_let_go_of_by_the_next(there: Cluster, app: str) -> None:
    first = there.batch(txnAppId=app, txnVersion="3")
    first.abort([stage(first, range(100)), None])
    assert there.staged(first.transaction().name) > 0
    again = there.batch(txnAppId=app, txnVersion="3")
    again.commit([stage(again, range(100))])
    assert there.stored() == list(range(100))
    assert there.staged(first.transaction().name) == 0


def test_a_version_that_goes_back_is_rejected(there: Cluster, app: str) -> None:
    first = there.batch(txnAppId=app, txnVersion="5")
    first.commit([stage(first, range(10))])
    older = there.batch(txnAppId=app, txnVersion="4")
    with pytest.raises(MinimqSparkError) as caught:
        older.commit([stage(older, range(10))])
    assert "has decided number 5" in rejection(caught)
    assert "txnVersion has to grow" in rejection(caught)
    assert there.stored() == list(range(10))


def test_a_broker_that_is_offline_at_the_commit(tmp_path: Path, app: str) -> None:
    with LocalCluster(brokers=2, data_dir=tmp_path) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        there = Cluster(cluster, "t")
        named = there.batch(txnAppId=app, txnVersion="1", commitTimeout="1s")
        unnamed = there.batch(transactional="true", commitTimeout="1s")
        staged = [(writer, stage(writer, range(50))) for writer in (named, unnamed)]
        cluster.brokers[1].kill()
        for (writer, message), advice in zip(
            staged, ("then restart the job with the same txnAppId", "a write with txnAppId and txnVersion"), strict=True
        ):
            with pytest.raises(MinimqSparkError) as caught:
                writer.commit([message])
            assert "broker broker-b" in rejection(caught)
            assert advice in rejection(caught)
        cluster.brokers[1].start()
        again = there.batch(txnAppId=app, txnVersion="1")
        again.commit([stage(again, range(50))])
        assert there.stored() == list(range(50))


# ---- Batches that are given up -------------------------------------------------------------------


@pytest.mark.parametrize("all_have_failed", [False, True])
def test_what_a_write_has_staged_is_let_go_of_when_it_fails(there: Cluster, all_have_failed: bool) -> None:
    writer = there.batch(transactional="true")
    message = stage(writer, range(100))
    name = writer.transaction().name
    assert there.staged(name) > 0
    writer.abort([None] if all_have_failed else [None, message])
    assert there.staged(name) == 0
    assert stage(writer, range(100, 200)).decided  # a task that Spark has not stopped yet
    assert there.staged(name) == 0
    assert there.stored() == []


def test_a_write_that_was_decided_is_ended_when_it_is_given_up(
    there: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    writer = there.batch(transactional="true")
    message = stage(writer, range(100))
    decide_at_one_broker(there, message)
    writer.abort([message])
    assert there.stored() == list(range(100))
    assert "was decided before it was given up" in caplog.text
