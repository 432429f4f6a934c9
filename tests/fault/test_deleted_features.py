"""Clusters whose brokers lack a feature: what does not need it works as before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.deleted_features import DELETABLE, copy_without

#: A plugin that makes sure that the scenarios start the copy.
LACKS = """
import importlib.util

def pytest_collection_finish():
    assert importlib.util.find_spec("minimq_broker.features.{}") is None
"""
ROOT = Path(__file__).parents[2]
#: Scenarios that need a feature.
NEEDED = {
    "compaction": "",
    "delayed": "due or recalled",
    "retention": "replies",
    "search": "",
    "staged": "",
    "work_queues": "two_kinds",
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", DELETABLE)
def test_scenarios_pass_without_the_feature(name: str, tmp_path: Path) -> None:
    copy_without(name, tmp_path)
    (tmp_path / "lacks.py").write_text(LACKS.format(name))
    others = "proto common nameserver client cli integrations console spark_connector tests"
    scenarios = "alone and pull and blocking" + (f" and not ({NEEDED[name]})" if NEEDED[name] else "")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-o", f"pythonpath={others}", "tests/contract"]
    command += ["-k", scenarios, "-p", "no:cacheprovider", "-p", "lacks"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-8000:]
