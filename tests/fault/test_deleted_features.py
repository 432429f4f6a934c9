"""Brokers and clients that lack features: what does not need them works as before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from support.deleted_features import CLIENT_FEATURES, DELETABLE, copy_client_without, copy_without

#: A plugin that makes sure that the tests import the copy.
LACKS = """
import importlib.util

def pytest_collection_finish():
    for name in {!r}:
        assert importlib.util.find_spec("{}.features." + name) is None
"""
ROOT = Path(__file__).parents[2]
OTHERS = "proto common nameserver {} cli integrations console spark_connector tests"
#: Scenarios that need a feature.
NEEDED = {
    "compaction": "",
    "delayed": "due or recalled",
    "retention": "replies",
    "search": "",
    "staged": "",
    "work_queues": "two_kinds",
}


#: The same of the client's kernel.
NEEDED_BY_CLIENTS = "broadcasting or filter_of_properties or two_kinds or due or recalled"


def pass_in(folder: Path, package: str, names: Iterable[str], *tests: str) -> None:
    """Run tests with the copy of a package, broker or client, that lacks features."""
    (folder / "lacks.py").write_text(LACKS.format([*names], package))
    others = OTHERS.format("broker" if package == "minimq" else "client")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-o", f"pythonpath={others}", *tests]
    command += ["-p", "no:cacheprovider", "-p", "lacks"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", DELETABLE)
def test_scenarios_pass_without_the_feature(name: str, tmp_path: Path) -> None:
    scenarios = "alone and pull and blocking" + (f" and not ({NEEDED[name]})" if NEEDED[name] else "")
    copy_without(tmp_path, name)
    pass_in(tmp_path, "minimq_broker", [name], "tests/contract", "-k", scenarios)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tests_of_the_kernel_pass_without_any_feature(tmp_path: Path) -> None:
    without_nesting = "--ignore=tests/unit/broker/test_deleted_features.py"
    copy_without(tmp_path, *DELETABLE)
    pass_in(tmp_path, "minimq_broker", DELETABLE, "tests/unit/broker", without_nesting)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_scenarios_of_the_kernel_pass_with_a_client_without_any_feature(tmp_path: Path) -> None:
    copy_client_without(tmp_path, *CLIENT_FEATURES)
    files = [f"tests/contract/test_{name}.py" for name in ("sending", "leased_queues", "delivery")]
    scenarios = f"alone and pull and not ({NEEDED_BY_CLIENTS})"
    pass_in(tmp_path, "minimq", CLIENT_FEATURES, *files, "-k", scenarios)
