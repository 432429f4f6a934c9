"""Spark and a cluster with TLS, which lets in nobody without a certificate."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from minimq import Admin, LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


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
        assert "BEGIN" not in printed.getvalue()
