"""Spark and a cluster that lets in nobody without a key."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from minimq import Admin, LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def secret_of(credentials: str) -> str:
    """Return what nobody may see of the key in credentials."""
    (found,) = re.findall(r'^key = "mq_[a-z2-7]{8}_(.{43})_', credentials, re.MULTILINE)
    return str(found)


def test_rows_are_written_and_read_with_a_file_or_its_content(spark: SparkSession, tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path, secure=True) as cluster:
        assert cluster.credentials is not None
        with Admin(credentials=cluster.credentials) as admin:
            admin.create_topic("t", queues=2)
        rows = spark.range(10).selectExpr("CAST(id AS STRING) AS body")
        given = {"credentials": str(cluster.credentials), "topic": "t", "transactional": "true"}
        rows.write.format("minimq").mode("append").options(**given).save()
        content = cluster.credentials.read_text()
        read = spark.read.format("minimq").option("credentialsSecret", content).option("topic", "t").load()
        assert sorted(int(row.body) for row in read.collect()) == list(range(10))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            read.explain(mode="extended")
        assert printed.getvalue()
        assert not any(secret in printed.getvalue() for secret in ("BEGIN", secret_of(content)))
        with Admin(credentials=cluster.credentials) as admin:
            bob = admin.add_user("bob", ["allow read topic other"])
        # Tasks follow each other in the processes of Spark: what admin has opened there must not serve bob.
        refused = spark.read.format("minimq").option("credentialsSecret", bob).option("topic", "t").load()
        with pytest.raises(Exception, match="user bob may not describe topic t") as raised:
            refused.collect()
        assert secret_of(bob) not in str(raised.value)
        with Admin(credentials=cluster.credentials) as admin:
            eve = admin.add_user("eve", ["allow write topic t"])
        given = {"credentialsSecret": eve, "topic": "t", "transactional": "true"}
        with pytest.raises(Exception, match=r"`minimq user allow eve --transaction 'spark-batch-\*'`"):
            rows.write.format("minimq").mode("append").options(**given).save()
