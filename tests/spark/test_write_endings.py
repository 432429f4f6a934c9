"""How writes end, without Spark: the calls that it makes of a writer are made by the tests, in their process."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterable

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage

from minimq import LocalCluster
from minimq.connectors import Transaction
from pyspark_minimq.errors import MinimqSourceError
from pyspark_minimq.option_table import Mode
from pyspark_minimq.sink import MinimqBatchWriter, MinimqStreamWriter, MinimqWriter
from pyspark_minimq.write_options import parse_write_options
from support.reading import read_all


class Cluster:
    """Writers for one topic, and what is in it."""

    def __init__(self, nameserver: str, topic: str) -> None:
        self._nameserver = nameserver
        self._topic = topic

    def batch(self, **options: str) -> MinimqBatchWriter:
        return MinimqBatchWriter(parse_write_options(self._options(options), Mode.BATCH))

    def stream(self, transaction: Transaction) -> MinimqStreamWriter:
        """Return a writer of which a task finds itself in a micro-batch."""

        class Writer(MinimqStreamWriter):
            def transaction(self) -> Transaction:
                return transaction

        return Writer(parse_write_options(self._options({}), Mode.STREAM))

    def stored(self) -> list[int]:
        return sorted(int(message.body) for message in read_all(self._nameserver, self._topic))

    def _options(self, given: dict[str, str]) -> dict[str, str]:
        return {"nameserver": self._nameserver, "topic": self._topic, **given}


@pytest.fixture
def there(cluster: LocalCluster, topic: str) -> Cluster:
    return Cluster(cluster.nameserver, topic)


def stage(writer: MinimqWriter, numbers: Iterable[int]) -> WriterCommitMessage:
    """Do what a task does, and return its message as the driver gets it. Rows go to all queues."""
    rows = list(numbers)
    keys = pa.array(rows, pa.int32())
    batch = pa.RecordBatch.from_pydict({"body": pa.array([b"%d" % row for row in rows]), "sharding_key": keys})
    message: WriterCommitMessage = pickle.loads(pickle.dumps(writer.write(iter([batch]))))
    return message


def refusal(error: pytest.ExceptionInfo[MinimqSourceError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


# ---- Micro-batches -------------------------------------------------------------------------------


def test_messages_of_another_micro_batch_are_refused(there: Cluster) -> None:
    name = f"spark-{uuid.uuid4()}"
    four, five = (there.stream(Transaction(name, number)) for number in (4, 5))
    messages = [stage(four, range(10)), None, stage(five, range(10, 20))]
    for given, number in ((messages[:2], 5), (messages, 4), (messages, 5)):
        with pytest.raises(MinimqSourceError) as caught:
            five.commit(given, number)
        assert f"Spark commits number {number}, and its tasks have written for transaction {name!r}" in refusal(caught)
    assert there.stored() == []
    five.commit(messages[2:], 5)
    assert there.stored() == list(range(10, 20))


def test_messages_of_two_queries_are_refused(there: Cluster) -> None:
    names = [f"spark-{uuid.uuid4()}" for _ in range(2)]
    writers = [there.stream(Transaction(name, 3)) for name in names]
    with pytest.raises(MinimqSourceError, match="and its tasks have written for transaction"):
        writers[0].commit([stage(writer, range(10)) for writer in writers], 3)
    assert there.stored() == []
