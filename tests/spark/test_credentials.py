"""Spark and a cluster that lets in nobody without a key."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from minimq import Admin, LocalCluster
from support.key_search import files_with, found_in, secrets_in
from support.users import Users

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A secured one, with a topic."""
    with LocalCluster(brokers=1, data_dir=tmp_path_factory.mktemp("cluster"), secure=True) as made:
        with Admin(credentials=made.credentials) as admin:
            admin.create_topic("t", queues=2)
        yield made


def plan_of(frame: DataFrame) -> bytes:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        frame.explain(True)
    return printed.getvalue().encode()


def test_rows_are_written_and_read_with_a_file_or_its_content(
    spark: SparkSession, cluster: LocalCluster, event_log: Path, tmp_path: Path
) -> None:
    assert cluster.credentials is not None
    content = cluster.credentials.read_text()
    secrets = secrets_in(content.encode())
    assert secrets
    secret = {"credentialsSecret": content, "topic": "t"}
    rows = spark.range(10).selectExpr("CAST(id AS STRING) AS body")
    rows.write.format("minimq").mode("append").options(**secret, transactional="true").save()
    read = spark.read.format("minimq").options(credentials=str(cluster.credentials), topic="t").load()
    assert sorted(int(row.body) for row in read.collect()) == list(range(10))
    stream = spark.readStream.format("minimq").options(**secret, startingOffsets="earliest").load()
    writing = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    assert sum(progress.numInputRows for progress in query.recentProgress) == 10
    plan = plan_of(spark.read.format("minimq").options(**secret).load())
    assert b"minimq" in plan
    assert not found_in(plan, secrets)
    assert files_with(tmp_path, secrets) == []
    [log] = event_log.iterdir()
    assert b"minimq" in b"".join(file.read_bytes() for file in ([log] if log.is_file() else log.iterdir()))
    assert files_with(event_log, secrets) == []
    users = Users(cluster)
    bob = users.add("bob", ["allow read topic other"])
    # Tasks follow each other in the processes of Spark: what admin has opened there must not serve bob.
    rejected = spark.read.format("minimq").options(credentialsSecret=bob, topic="t").load()
    with pytest.raises(Exception, match="user bob has no right to topic t") as raised:
        rejected.collect()
    assert not found_in(str(raised.value).encode(), secrets_in(bob.encode()))
    in_the_plan = "Failed to initialize Python data source writer"
    with pytest.raises(Exception, match=f"(?s){in_the_plan}.*MinimqSparkError: user bob has no right to topic t"):
        rows.write.format("minimq").mode("append").options(credentialsSecret=bob, topic="t").save()
    eve = users.add("eve", ["allow write topic t"])
    given = {"credentialsSecret": eve, "topic": "t", "transactional": "true"}
    with pytest.raises(Exception, match=r"`minimq user allow eve --transaction 'spark-batch-\*'`"):
        rows.write.format("minimq").mode("append").options(**given).save()
