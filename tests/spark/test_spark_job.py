"""The job that `spark-submit` runs in a container: what it counts is what was sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from minimq import LocalCluster, Message, MessageQueue, Producer

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.spark
def test_it_counts_what_is_there(
    spark: SparkSession, cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import spark_job  # found only now

    sent = {MessageQueue(topic, "broker-a", 1): 700, MessageQueue(topic, "broker-b", 3): 302}
    with Producer(cluster.nameserver) as producer:
        for queue, count in sent.items():
            producer.send_many((Message(topic, b"%d" % number) for number in range(count)), queue=queue)
    messages = spark_job.read_topic(spark, cluster.nameserver, topic)
    rows = [tuple(row) for row in spark_job.count_queues(messages).collect()]
    assert rows == [("broker-a", 1, 700, 0, 699), ("broker-b", 3, 302, 0, 301)]
    assert spark_job.count_bodies(messages) == (1002, 700)
