"""Executors that are processes of their own, as in a real Spark cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from minimq import Admin, LocalCluster, Message, Producer

JOB = Path(__file__).with_name("local_cluster_job.py")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    # Without a transaction, the 5000 rows of the task that was tried again are there twice.
    ("work", "rows"),
    [("read", 20_000), pytest.param("stream", 25_000, marks=pytest.mark.long)],
)
def test_executors_read_and_write_on_their_own(
    cluster: LocalCluster, topic: str, admin: Admin, new_name: Callable[[], str], work: str, rows: int
) -> None:
    copy = new_name()
    admin.create_topic(copy, queues=2)
    with Producer(cluster.nameserver) as producer:
        producer.send_many(Message(topic, b"%d" % number) for number in range(20_000))
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
    }
    done = subprocess.run(
        [sys.executable, JOB, work, cluster.nameserver, topic, copy],
        env=environment,
        capture_output=True,
        text=True,
        timeout=350,
        check=False,
    )
    assert f"RESULT 20000 20000 {sum(range(20_000))}" in done.stdout, done.stderr[-3000:]
    assert f"WRITE {rows} 20000" in done.stdout, done.stderr[-3000:]
