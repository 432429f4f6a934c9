"""What tests of several folders share: a cluster of real servers, and topics on it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

import hypothesis
import pytest

from minimq.administration.admin import Admin
from minimq.local.local_cluster import LocalCluster
from minimq_broker.store.check import check_directory

_numbers = itertools.count(1)

# How long an example takes says nothing where other tests run beside it.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


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


@pytest.fixture(scope="session")
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.nameserver) as client:
        yield client


@pytest.fixture
def new_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Make names that no other test has, for topics and groups."""
    test = re.sub(r"[^a-zA-Z0-9]+", "_", request.node.name)[:80]
    return lambda: f"{test}-{next(_numbers)}"


@pytest.fixture
def topic(admin: Admin, new_name: Callable[[], str]) -> Iterator[str]:
    """Name of a new topic with four queues on each of the two brokers of `cluster`."""
    name = new_name()
    admin.create_topic(name, queues=4)
    yield name
    admin.delete_topic(name, if_exists=True)
