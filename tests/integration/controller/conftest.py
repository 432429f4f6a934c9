"""Controllers of both kinds, and replicas that report to them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minimq_broker.replication.controller import parse
from support.controller_process import ControllerProcess
from support.etcd_cluster import EtcdCluster, etcd_cluster
from support.loop_thread import LoopThread
from support.reporter import LEASE_S, PATIENT_LEASE_S, Reporter, StartReporter
from support.reports import report

_names = (f"broker-{number}" for number in itertools.count())


@pytest.fixture(scope="package")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """A cluster for tests that do it no harm."""
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerProcess]:
    """A controller for tests that do it no harm."""
    with ControllerProcess(tmp_path_factory.mktemp("controller"), LEASE_S) as controller:
        yield controller


@pytest.fixture
def own_nameserver(tmp_path: Path) -> Iterator[ControllerProcess]:
    with ControllerProcess(tmp_path / "controller", LEASE_S) as controller:
        yield controller


@pytest.fixture(params=["nameserver", "etcd"])
def controller(request: pytest.FixtureRequest) -> str:
    """Return a value for a broker's `--controller`, once for each kind."""
    if request.param == "etcd":
        etcd: EtcdCluster = request.getfixturevalue("etcd")
        return etcd.option
    nameserver: ControllerProcess = request.getfixturevalue("nameserver")
    return nameserver.address


@pytest.fixture
def patient_controller(controller: str, tmp_path: Path) -> Iterator[str]:
    """One that collects reports for `PATIENT_LEASE_S`; one that goes by etcd is told by its replicas."""
    if controller.startswith("etcd:"):
        yield controller
        return
    with ControllerProcess(tmp_path / "patient", PATIENT_LEASE_S) as own:
        yield own.address


@pytest.fixture
def broker_name() -> str:
    """A replica set that no other test has."""
    return next(_names)


@pytest.fixture
def start(loop: LoopThread, broker_name: str) -> Iterator[StartReporter]:
    with contextlib.ExitStack() as stack:

        def start_one(controller: str, replica_id: int = 0, lease_s: float = LEASE_S, **other: Any) -> Reporter:
            made = Reporter(
                loop, parse(controller, term_lease_s=lease_s), report(replica_id, broker_name=broker_name, **other)
            )
            stack.callback(made.close)
            made.start()
            return made

        yield start_one
