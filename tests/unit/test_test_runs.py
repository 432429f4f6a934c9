"""The runs of these tests: who shares a worker, what is left out or repeated, and which secrets are found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import hypothesis

from support.chance import IS_SEED_GIVEN
from support.scheduling import group_of

REPOSITORY = Path(__file__).parents[2]
TESTS = REPOSITORY / "tests"
OPTIONS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]


def run(folder: Path, tests: str, *arguments: str, **environment: str) -> str:
    """Run tests under the conftest and the options of this repository, and return all that pytest prints."""
    (folder / "test_it.py").write_text(tests)
    pytest = (sys.executable, "-m", "pytest", "-p", "conftest", "-c", REPOSITORY / "pyproject.toml")
    seedless = {name: value for name, value in os.environ.items() if name != "MINIMQ_TEST_SEED"}
    path = os.pathsep.join(str(REPOSITORY / root) for root in OPTIONS["pythonpath"])
    done = subprocess.run(
        [*pytest, f"--rootdir={folder}", "-pno:cacheprovider", *arguments, folder],
        env=seedless | environment | {"PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def test_properties_are_tried_with_the_same_examples_in_each_run() -> None:
    assert hypothesis.settings().derandomize != IS_SEED_GIVEN


def test_what_shares_something_expensive_shares_a_worker() -> None:
    assert group_of("tests/spark/test_batch_read.py") == group_of("tests/spark/test_outages.py")
    assert group_of("tests/fault/test_kill.py") == "tests/fault/test_kill.py"
    needs_a_session = {
        str(path.relative_to(REPOSITORY))
        for path in (TESTS / "spark").glob("test_*.py")
        if "spark: SparkSession" in path.read_text()
    }
    assert {file for file in needs_a_session if group_of(file) == file} == set()


CRASHING = """
import os, pathlib, signal

def test_it():
    mark = pathlib.Path(__file__).with_name("crashed")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_goes_on_when_a_worker_crashes(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"test_{number}.py").write_text("def test_it(): pass")

    printed = run(tmp_path, CRASHING, "-n", "2", "--no-loadscope-reorder")

    assert "crashed while running 'test_it.py::test_it'" in printed, printed
    assert "1 failed, 7 passed" in printed, printed


def test_no_folder_of_tests_is_left_out() -> None:
    folders = {path.relative_to(REPOSITORY).parts[:2] for path in (REPOSITORY / "tests").rglob("test_*.py")}

    assert {"/".join(parts) for parts in folders} == set(OPTIONS["testpaths"])


def test_each_long_test_has_a_short_one() -> None:
    long: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        file, text = str(path.relative_to(TESTS)), path.read_text()
        names = re.findall(r"^@pytest\.mark\.long\n(?:@.*\n)*def (\w+)", text, re.MULTILINE)
        long |= {f"{file}::{name}" for name in names}
        long |= {file} if re.search(r"^pytestmark = .*\bmark\.long\b", text, re.MULTILINE) else set()
    table = (TESTS / "README.md").read_text().partition("| long | short |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(.*?)`.* \| (.*) \|$", table, re.MULTILINE)

    assert long <= {one for one, _ in rows}
    for _, counterparts in rows:
        for file, name in re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", counterparts):
            assert f"def {name}" in (TESTS / file).read_text(), counterparts


MAKING = """
import logging, os, subprocess, sys
from minimq_common.security.user_key import new_key

KEY = new_key(bytes(range(37)))
SECRET = KEY.text.split("_", 2)[2][:43]
PRIVATE = "ab/+" * 16
log = logging.getLogger("minimq.some")

def test_it(tmp_path):
    (tmp_path / "user.minimq").write_text(KEY.text)
    (tmp_path / "tls.key").write_text(f"-----BEGIN PRIVATE KEY-----\\n{PRIVATE}\\n-----END")
    leave_behind(tmp_path)
"""
LEAKING = (
    MAKING
    + """
def leave_behind(path):
    for name, secret in (("key", KEY.text), ("secret", SECRET), ("private", PRIVATE), ("long", "x" * 5_000 + SECRET)):
        (path / name).write_bytes(secret.encode())
        os.truncate(path / name, 1 << 40)
    log.debug("it is %s", SECRET)
    global kept
    kept = subprocess.Popen([sys.executable, "-c", "input()", SECRET], stdin=subprocess.PIPE)

def teardown_module():
    kept.kill()
    kept.communicate()
"""
)
CLEAN = (
    MAKING
    + """
def leave_behind(path):
    assert os.environ["MINIMQ_BROKER_LOG_LEVEL"] == os.environ["MINIMQ_NAMESERVER_LOG_LEVEL"] == "debug"
    log.debug("key %s of hash %s: %r", KEY.id, KEY.hash, KEY)
"""
)


def test_secrets_that_a_run_leaves_behind_are_found(tmp_path: Path) -> None:
    made = tmp_path / "made"
    printed = run(tmp_path, LEAKING, f"--basetemp={made}", "-vv", MINIMQ_TEST_KEYS="1")
    assert "1 passed, 1 error" in printed, printed
    for place in ("key", "secret", "private", "long"):
        assert str(made / "test_it0" / place) in printed
    assert str(made / "outputs.txt") in printed
    assert "a process of test_it.py::test_it" in printed
    printed = run(tmp_path, CLEAN, f"--basetemp={made}", "-s", MINIMQ_TEST_KEYS="1")
    assert "1 passed in" in printed, printed
    assert f"none of 2 secrets was found below {made}" in printed
