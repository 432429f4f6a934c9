"""Every scenario runs with each face, kind of consumer and cluster that its marks do not leave out."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator

import pytest

from contract.case import Case
from contract.faces import Asyncio, Blocking
from contract.receivers import COMMON_KINDS
from contract.topologies import FailingOver, Replicated, Topology, alone, replicated, settle
from minimq import LocalCluster
from support.reading import check_brokers
from support.replicas import check_same

FACES = {"blocking": Blocking, "asyncio": Asyncio}
TOPOLOGIES = {"alone": Topology, "replicated": Replicated, "failing over": FailingOver}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("kinds")
    kinds = COMMON_KINDS if mark is None else mark.args or ("sending",)
    # A fail-over takes seconds: every other case of it is left to the other face.
    odd = zlib.crc32(metafunc.definition.nodeid.encode()) % 2
    cases = [
        pytest.param(
            (face, kind, topology),
            id=f"{face}, {kind}, {topology}",
            marks=() if topology == "alone" else pytest.mark.fault,
        )
        for topology in TOPOLOGIES
        for number, (face, kind) in enumerate(itertools.product(FACES, kinds))
        if topology != "failing over" or (number + number // len(kinds)) % 2 == odd
    ]
    metafunc.parametrize("case", cases, indirect=True)


@pytest.fixture(scope="session")
def broker_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with alone(tmp_path_factory.mktemp("alone")) as cluster:
        yield cluster
    check_brokers(cluster)


@pytest.fixture(scope="session")
def three_replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with replicated(tmp_path_factory.mktemp("replicated")) as cluster:
        yield cluster
        settle(cluster)
    check_same(cluster)


@pytest.fixture(scope="session")
def asyncio_face() -> Iterator[Asyncio]:
    face = Asyncio()
    yield face
    face.loop.close()


@pytest.fixture
def case(request: pytest.FixtureRequest, new_name: Callable[[], str]) -> Iterator[Case]:
    face, kind, topology = request.param
    cluster = request.getfixturevalue("broker_alone" if topology == "alone" else "three_replicas")
    chosen = request.getfixturevalue("asyncio_face") if face == "asyncio" else Blocking()
    made = Case(chosen, kind, TOPOLOGIES[topology](cluster), new_name)
    yield made
    made.close()
