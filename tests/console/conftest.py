"""One console of the cluster that all tests share, served in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minimq.cli.console import serving_console
from minimq.local.local_cluster import LocalCluster
from support.console_client import ConsoleClient


@pytest.fixture(scope="module")
def console(cluster: LocalCluster) -> Iterator[ConsoleClient]:
    with serving_console(cluster.nameserver, "127.0.0.1", 0, interval_s=0.2) as served:
        yield ConsoleClient(served.address)
