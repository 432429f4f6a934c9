"""Hooks and fixtures that tests of several folders share: a cluster of real servers, and topics on it."""

from __future__ import annotations

import faulthandler
import functools
import gc
import itertools
import logging
import os
import re
import signal
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
import pytest_timeout

# Early: while it rewrites a module, Python 3.11 fails if another thread formats a traceback, as of a listener.
import minimq_broker.assembly  # noqa: F401 - registers the features
from minimq.admin.admin import Admin
from minimq.local import server_process
from minimq.local.local_cluster import LocalCluster
from minimq.producer import Producer
from minimq_broker.backup.check import check_directory
from support.chance import IS_SEED_GIVEN, SEED, SEED_VARIABLE
from support.key_run import KeyRun
from support.key_search import IS_ON
from support.server_copies import CommandCopy, ServerCopies

if TYPE_CHECKING:
    from support.scheduling import GroupScheduling

_numbers = itertools.count(1)
KEY_RUN = "key-run"
HERE = Path(__file__).parent
_stderr_key = pytest.StashKey[int]()
_copies_key = pytest.StashKey[ServerCopies]()

# How long an example takes says nothing where other tests run beside it.
hypothesis.settings.register_profile("patient", deadline=None, derandomize=not IS_SEED_GIVEN, print_blob=True)
hypothesis.settings.load_profile("patient")


def _java_options() -> str:
    # The sessions of tests end before the second compiler of a JVM, and many threads that collect garbage, would pay
    # off. With the archive that `make test` has made, classes take half the time to load.
    archive = Path(sys.prefix, "spark.jsa")
    has_archive = archive.exists() and archive.stat().st_size
    return "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" + (
        f" -Xlog:cds*=off -XX:SharedArchiveFile={archive}" if has_archive else ""
    )


os.environ.setdefault("SPARK_SUBMIT_OPTS", _java_options())

# How full the disk of this machine is must not matter. The tests about full disks bring their own disk and options.
for _mark in ("DELETE_EARLY", "REJECT"):
    os.environ.setdefault(f"MINIMQ_BROKER_DISK_{_mark}", "1")

# Stores sync thousands of times, and few tests are about the disk: those bring their own.
_IN_MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and _IN_MEMORY.is_dir():
    _shown = os.statvfs(_IN_MEMORY)
    if _shown.f_bavail * _shown.f_frsize > 4 << 30 and not _shown.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = str(_IN_MEMORY)
        tempfile.tempdir = None  # what it was before

#: Each worker of a parallel run has ports of its own: none takes that of a server which another one has stopped. Two
#: runs on one machine begin at different ones.
_PORTS_OF_A_WORKER = 3_500
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_run = zlib.crc32(os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid())).encode())
server_process._port_numbers = itertools.count(_run + _worker * _PORTS_OF_A_WORKER)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--machine-steps", type=int, help="steps of each test in tests/machine")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if IS_SEED_GIVEN and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = SEED  # before hypothesis reads it
    # A shell lets what it starts in the background ignore it, and so would all servers and commands of the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_stderr_key] = os.dup(sys.__stderr__.fileno()) if sys.__stderr__ else 2
    if IS_ON:  # it looks at what others see of all servers
        config.pluginmanager.register(KeyRun(), KEY_RUN)
    else:
        copies = config.stash[_copies_key] = ServerCopies()
        server_process.start_command = copies.start
        CommandCopy.copies = copies


def pytest_unconfigure(config: pytest.Config) -> None:
    if _copies_key in config.stash:
        config.stash[_copies_key].close()


#: Folders whose tests all have a mark that leaves them to `make test-faults`.
MARKED = {
    "fault": "fault",
    "integration/replication": "fault",
    "integration/controller": "fault",
    "console/browser": "slow",
    "spark": "slow",
}
#: Files of these folders that stay in `make test`.
QUICK = {"spark/test_batch_read.py"}


@functools.cache
def _mark_of(path: Path) -> str | None:
    """Return the mark that all tests of a file or folder have."""
    if not path.is_relative_to(HERE) or (name := path.relative_to(HERE).as_posix()) in QUICK:
        return None
    return next((mark for folder, mark in MARKED.items() if f"/{folder}/" in f"/{name}"), None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files whose tests would all be deselected: each worker would."""
    mark = _mark_of(collection_path) if collection_path.name.startswith("test_") else None
    return True if mark and f"not {mark}" in config.option.markexpr else None


def pytest_itemcollected(item: pytest.Item) -> None:
    if mark := _mark_of(item.path):
        item.add_marker(mark)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    gc.disable()  # nothing that is collected goes away again: looking for garbage would double the time
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    # All that belongs to thousands of tests stays to the end: whoever collects garbage need not look at it.
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    return f"{SEED_VARIABLE}={SEED}"


# ---- Parallel runs --------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> GroupScheduling | None:
    from support.scheduling import GroupScheduling  # a run in one process does without xdist

    return GroupScheduling(config, log) if config.getoption("dist") == "load" else None


# ---- Tests that hang ------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> None:
    """Print the stacks of all threads just before the test's own timeout, also if it hangs outside of Python."""
    faulthandler.dump_traceback_later(0.95 * settings.timeout, file=item.config.stash[_stderr_key])


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer() -> None:
    faulthandler.cancel_dump_traceback_later()


# ---- Fixtures -------------------------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def key_run(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Search for secrets once all others have ended, if that is asked for."""
    run: KeyRun | None = pytestconfig.pluginmanager.get_plugin(KEY_RUN)
    if run is not None:
        tmp_path_factory._retention_policy = "all"  # it looks at all that is written
        run.begin(tmp_path_factory.getbasetemp())
    yield
    if run is not None:
        run.end()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One name server and two brokers for the whole run; a test that makes faults starts a cluster of its own."""
    with LocalCluster(brokers=2, data_dir=tmp_path_factory.mktemp("cluster")) as shared:
        yield shared
    check_stores(shared)


def check_stores(cluster: LocalCluster) -> None:
    """Verify the stores of a cluster that has ended."""
    for broker in cluster.brokers:
        assert check_directory(broker.data_dir).findings == [], broker


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Undo what commands that run in this process set: it would hide from later tests what is logged."""
    yield
    for name, logger in [*logging.root.manager.loggerDict.items()]:  # threads may add others
        if name.startswith("minimq") and isinstance(logger, logging.Logger):
            logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.nameserver) as client:
        yield client


@pytest.fixture
def new_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Make names that no other test has, for topics, groups and users."""
    test = re.sub(r"[^a-zA-Z0-9]+", "_", request.node.name)[:50]
    return lambda: f"{test}-{next(_numbers)}"


@pytest.fixture
def group(new_name: Callable[[], str]) -> str:
    """Name of a group that no other test has."""
    return new_name()


@pytest.fixture
def producer(cluster: LocalCluster) -> Iterator[Producer]:
    with Producer(cluster.nameserver) as sending:
        yield sending


@pytest.fixture
def topic(admin: Admin, new_name: Callable[[], str]) -> Iterator[str]:
    """Name of a new topic with four queues on each of the two brokers of `cluster`."""
    name = new_name()
    admin.create_topic(name, queues=4)
    yield name
    admin.delete_topic(name, if_exists=True)
