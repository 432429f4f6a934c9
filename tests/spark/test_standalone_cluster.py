"""The ways of docs/spark.md by which the source gets to a cluster, on a real one: "On a cluster"."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from support.packaging import borrow_packages, build_wheel, install, make_environment, pack
from support.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

JOB = Path(__file__).with_name("cluster_job.py")
ROWS = 20


@dataclass(frozen=True)
class Parts:
    """The files that can be sent to a cluster.

    Attributes:
        folder: where it all is.
        complete: a Python that has the package.
        dependent: a Python that has what the package needs, and not the package.
        bare: a Python that has nothing.
    """

    folder: Path
    complete: Path
    dependent: Path
    bare: Path


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """Make `minimq.zip`, `environment.tar.gz` (a virtual environment), `deps` and `deps.tar.gz` (its packages)."""
    folder = tmp_path_factory.mktemp("parts")
    wheel = build_wheel(folder)
    shutil.copy(wheel, folder / "minimq.zip")
    packages = make_environment(folder / "environment")
    install(wheel, packages, "pyarrow")
    pack(folder / "environment", folder / "environment.tar.gz")
    (folder / "deps").symlink_to(packages)
    pack(packages, folder / "deps.tar.gz")
    borrow_packages(make_environment(folder / "dependent"))
    make_environment(folder / "bare")
    return Parts(folder, *(folder / name / "bin/python" for name in ("environment", "dependent", "bare")))


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark")) as started:
        yield started


@pytest.fixture
def arguments(cluster: LocalCluster, admin: Admin, topic: str, new_name: Callable[[], str]) -> list[str]:
    """Send messages; return what the job is to be told."""
    copy = new_name()
    admin.create_topic(copy, queues=1)
    with Producer(cluster.nameserver) as producer:
        producer.send_many(Message(topic, b"%d" % number) for number in range(ROWS))
    return [cluster.nameserver, topic, copy]


def assert_done(output: str) -> None:
    for what in ("READ", "WRITTEN", "STREAMED"):
        assert f"{what} {ROWS}\n" in output, output[-5000:]


def test_installed_for_the_python_of_driver_and_nodes(
    spark_cluster: SparkCluster, parts: Parts, arguments: list[str]
) -> None:
    environment = {"PYSPARK_PYTHON": str(parts.complete)}
    assert_done(spark_cluster.submit(JOB, *arguments, options=[], folder=parts.folder, environment=environment))


def test_a_packed_environment(spark_cluster: SparkCluster, parts: Parts, arguments: list[str]) -> None:
    options = ["--archives", "environment.tar.gz#environment"]
    options += ["--conf", "spark.sql.execution.pyspark.python=./environment/bin/python"]
    environment = {"PYSPARK_PYTHON": str(spark_cluster.python_of_driver(parts.complete))}
    assert_done(spark_cluster.submit(JOB, *arguments, options=options, folder=parts.folder, environment=environment))


def test_a_folder_of_packages(spark_cluster: SparkCluster, parts: Parts, arguments: list[str]) -> None:
    options = ["--archives", "deps.tar.gz#deps", "--conf", "spark.executorEnv.PYTHONPATH=deps"]
    environment = {"PYSPARK_PYTHON": str(parts.bare), "PYTHONPATH": "deps"}
    assert_done(spark_cluster.submit(JOB, *arguments, options=options, folder=parts.folder, environment=environment))


def test_a_zip_beside_its_dependencies(spark_cluster: SparkCluster, parts: Parts, arguments: list[str]) -> None:
    options = ["--files", "minimq.zip", "--conf", "spark.executorEnv.PYTHONPATH=minimq.zip"]
    environment = {"PYSPARK_PYTHON": str(parts.dependent), "PYTHONPATH": "minimq.zip"}
    assert_done(spark_cluster.submit(JOB, *arguments, options=options, folder=parts.folder, environment=environment))


def test_a_zip_as_py_file_needs_the_class_to_be_registered(
    spark_cluster: SparkCluster, parts: Parts, arguments: list[str]
) -> None:
    options = ["--py-files", "minimq.zip"]
    environment = {"PYSPARK_PYTHON": str(parts.dependent)}
    job: list[str | Path] = [JOB, *arguments]
    found = spark_cluster.submit(*job, options=options, folder=parts.folder, environment=environment)
    assert "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: minimq" in found
    environment["PYTHONPATH"] = "minimq.zip"  # Spark forgets its --py-files where it plans streams
    assert_done(spark_cluster.submit(*job, "--register", options=options, folder=parts.folder, environment=environment))


# ---- Spark Connect ------------------------------------------------------------------------------


def run_client(server: str, *arguments: str, folder: Path) -> str:
    """Run the job as a client of a Connect server, and return what it has written."""
    command = [sys.executable, "-W", "ignore", str(JOB), "--remote", server, *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=540, check=False
    )
    return done.stdout + done.stderr


def test_connect_with_the_package_on_server_and_nodes(
    spark_cluster: SparkCluster, parts: Parts, arguments: list[str]
) -> None:
    server = spark_cluster.connect_server(options=[], environment={"PYSPARK_PYTHON": str(parts.complete)})
    assert_done(run_client(server, *arguments, folder=parts.folder))


def test_connect_with_a_packed_environment_as_artifact_of_a_batch_query(
    spark_cluster: SparkCluster, parts: Parts, arguments: list[str]
) -> None:
    python = spark_cluster.python_of_driver(parts.complete)
    server = spark_cluster.connect_server(options=[], environment={"PYSPARK_PYTHON": str(python)})
    sent = [*arguments, "--archive", "environment.tar.gz#environment", "--batch-only"]
    output = run_client(server, *sent, folder=parts.folder)
    assert f"WRITTEN {ROWS}\n" in output, output[-5000:]
