"""Clusters whose brokers lack a feature: what does not need it works as before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.deleted_features import DELETABLE, copy_without

#: A plugin that makes sure that the tests import the copy.
LACKS = """
import importlib.util

def pytest_collection_finish():
    for name in {!r}:
        assert importlib.util.find_spec("minimq_broker.features." + name) is None
"""
ROOT = Path(__file__).parents[2]
OTHERS = "proto common nameserver client cli integrations console spark_connector tests"
#: Scenarios that need a feature.
NEEDED = {
    "compaction": "",
    "delayed": "due or recalled",
    "retention": "replies",
    "search": "",
    "staged": "",
    "work_queues": "two_kinds",
}


def pass_without(folder: Path, names: tuple[str, ...], *tests: str) -> None:
    copy_without(folder, *names)
    (folder / "lacks.py").write_text(LACKS.format(names))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-o", f"pythonpath={OTHERS}", *tests]
    command += ["-p", "no:cacheprovider", "-p", "lacks"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", DELETABLE)
def test_scenarios_pass_without_the_feature(name: str, tmp_path: Path) -> None:
    scenarios = "alone and pull and blocking" + (f" and not ({NEEDED[name]})" if NEEDED[name] else "")
    pass_without(tmp_path, (name,), "tests/contract", "-k", scenarios)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tests_of_the_kernel_pass_without_any_feature(tmp_path: Path) -> None:
    without_nesting = "--ignore=tests/unit/broker/test_deleted_features.py"
    pass_without(tmp_path, tuple(DELETABLE), "tests/unit/broker", without_nesting)
