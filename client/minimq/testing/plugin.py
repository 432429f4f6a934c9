"""The pytest plugin: fixtures, and the logs of servers in the report of a failed test.

pytest loads it in every run where minimq is installed, so it imports the library only when a test uses a fixture.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from minimq import Admin, LocalCluster
    from minimq.testing import NewGroup, NewTopic

#: Bytes of the log of one server in a report.
_MAX_BYTES = 16 << 10
_cluster_key: pytest.StashKey[LocalCluster] = pytest.StashKey()
_logs_key: pytest.StashKey[ServerLogs] = pytest.StashKey()


@pytest.fixture(scope="session")
def minimq_cluster_options() -> Mapping[str, object]:
    """Options of `minimq.LocalCluster` for `minimq_cluster`. Override this fixture to change them."""
    return {"brokers": 1}


@pytest.fixture(scope="session")
def minimq_cluster(minimq_cluster_options: Mapping[str, object], pytestconfig: pytest.Config) -> Iterator[LocalCluster]:
    """A real cluster for all tests of a process; with pytest-xdist each worker has its own.

    A test may kill, pause and stop its servers: they are running again when the next test begins.
    """
    from minimq import LocalCluster  # most runs of pytest do not use minimq

    with LocalCluster(**minimq_cluster_options) as cluster:  # type: ignore[arg-type] # it checks them itself
        pytestconfig.stash[_cluster_key], pytestconfig.stash[_logs_key] = cluster, ServerLogs(cluster)
        yield cluster
        del pytestconfig.stash[_cluster_key], pytestconfig.stash[_logs_key]


@pytest.fixture(scope="session")
def minimq_admin(minimq_cluster: LocalCluster) -> Iterator[Admin]:
    """An `Admin` of the cluster."""
    from minimq import Admin

    # Ignore credentials of the environment: they belong to another cluster.
    with Admin(minimq_cluster.nameserver, credentials=minimq_cluster.credentials or "") as admin:
        yield admin


@pytest.fixture(scope="session")
def minimq_nameserver(minimq_cluster: LocalCluster) -> str:
    """The address that clients need."""
    return minimq_cluster.nameserver


@pytest.fixture
def minimq_new_topic(minimq_admin: Admin, request: pytest.FixtureRequest) -> Iterator[NewTopic]:
    """Creates topics that are deleted after the test: `minimq_new_topic(queues=1)` returns the name."""
    from minimq.testing.names import NewTopic

    topics = NewTopic(minimq_admin, request.node.name)
    yield topics
    topics.delete_all()


@pytest.fixture
def minimq_topic(minimq_new_topic: NewTopic) -> str:
    """The name of a topic that is created for the test."""
    return minimq_new_topic()


@pytest.fixture
def minimq_new_group(minimq_admin: Admin, request: pytest.FixtureRequest) -> Iterator[NewGroup]:
    """Makes names of consumer groups, which are deleted after the test: `minimq_new_group()` returns one."""
    from minimq.testing.names import NewGroup

    groups = NewGroup(minimq_admin, request.node.name)
    yield groups
    groups.delete_all()


@pytest.fixture
def minimq_group(minimq_new_group: NewGroup) -> str:
    """The name of a consumer group for this test only."""
    return minimq_new_group()


# ---- Logs of the servers -----------------------------------------------------------------------------


class ServerLogs:
    """The logs of the servers of a cluster. Not thread-safe."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._paths = {server.name: server.log_path for server in (*cluster.nameservers, *cluster.brokers)}
        self._begins: dict[str, int] = {}

    def begin(self) -> None:
        """Skip everything logged so far."""
        self._begins = {name: _size(path) for name, path in self._paths.items()}

    def sections(self) -> list[tuple[str, str]]:
        """Return title and text for each server that has logged something since `begin`; of a long text the end."""
        found = []
        for name, path in self._paths.items():
            begin, end = self._begins.get(name, 0), _size(path)
            if end > begin:
                with suppress(OSError), path.open("rb") as log_file:  # the cluster may be deleting it
                    log_file.seek(max(begin, end - _MAX_BYTES))
                    found.append((f"log of minimq {name}", log_file.read().decode(errors="replace")))
        return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # it was never started, or the data directory is gone
        return 0


# ---- Around each test -------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember where the logs of the servers end."""
    if (logs := item.config.stash.get(_logs_key, None)) is not None:
        logs.begin()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Restart servers that a test has stopped, before fixtures delete their topics and groups."""
    if (cluster := item.config.stash.get(_cluster_key, None)) is not None:
        for server in (*cluster.nameservers, *cluster.brokers):
            if server.paused:
                server.resume()
            server.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the servers to the report of a failed test."""
    report = yield
    logs = item.config.stash.get(_logs_key, None)
    if report.failed and logs is not None:
        report.sections += logs.sections()
    return report
