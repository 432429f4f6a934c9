"""The ways of docs/spark.md by which a program on one machine finds minimq: "Where Spark finds minimq".

The way by `session` is that of the README.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from minimq import LocalCluster, Message, Producer
from pyspark_minimq import session

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("finding_job.py")
NOT_FOUND = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: minimq"


def run(
    cluster: LocalCluster, topic: str, *how: str, before: Sequence[str | Path] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the program with the variables of a shell in which no environment is activated, and those that are given."""
    with Producer(cluster.nameserver) as producer:
        producer.send(Message(topic, b"espresso"))
    ours = ("PYSPARK_PYTHON", "PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    bare = [folder for folder in environment["PATH"].split(os.pathsep) if Path(folder) != Path(sys.executable).parent]
    environment |= {"PATH": os.pathsep.join(bare), "SPARK_HOME": str(Path(pyspark.__file__).parent)}
    return subprocess.run(
        [*(before or [sys.executable]), PROGRAM, cluster.nameserver, topic, *how],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_a_session_that_is_there_is_returned(spark: SparkSession) -> None:
    assert session() is spark


@pytest.mark.slow
def test_without_help_spark_looks_elsewhere_and_the_helper_says_so(cluster: LocalCluster, topic: str) -> None:
    done = run(cluster, topic, "too late")
    assert NOT_FOUND in done.stdout, done.stderr[-3000:]
    assert "MinimqSparkError: Spark looks for formats in " in done.stderr
    assert f"start this program with PYSPARK_PYTHON={sys.executable}; in a notebook restart the kernel" in done.stderr


# ---- The few lines of Spark in the README, as a newcomer runs them ------------------------------


README = Path(__file__).parents[2] / "README.md"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_lines_run_in_a_python_that_is_not_the_one_on_the_path(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    with Producer(cluster.nameserver) as producer:
        producer.send(Message(topic, b"espresso"))
    [lines] = [block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "spark" in block]
    program = tmp_path / "orders.py"
    program.write_text(lines.replace("127.0.0.1:9876", cluster.nameserver).replace('"orders"', repr(topic)))
    environment = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "VIRTUAL_ENV")}
    environment["PATH"] = os.pathsep.join(
        folder for folder in os.environ["PATH"].split(os.pathsep) if Path(folder) != Path(sys.executable).parent
    )
    done = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "espresso" in done.stdout
