"""One Spark session for all tests that need one, and no connection that outlives the tests of a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_minimq import connections


@pytest.fixture(scope="module", autouse=True)
def kept_connections() -> Iterator[None]:
    """Close what writers and readers keep in this process for as long as it lives, which is that of all tests here."""
    yield
    while connections._kept:
        _, kept = connections._kept.popitem()
        kept.close()  # type: ignore[attr-defined]  # of each kind


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the session writes down what it does."""
    return tmp_path_factory.mktemp("event-log")


@pytest.fixture(scope="session")
def spark(event_log: Path) -> Iterator[SparkSession]:
    # Spark starts Python workers by itself: the same interpreter, and the packages from the same places as here.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        session = (
            SparkSession.builder.master("local[2]")
            .appName("minimq-tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "1g")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.log.level", "ERROR")
            .config("spark.eventLog.enabled", "true")
            .config("spark.eventLog.dir", event_log.as_uri())
            .config("spark.eventLog.compress", "false")
            .getOrCreate()
        )
        yield session
        session.stop()
