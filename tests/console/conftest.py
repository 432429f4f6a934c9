"""One console of the cluster that all tests share, served in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minimq.local.local_cluster import LocalCluster
from minimq_cli.console import serving_console
from minimq_console import page, visitors
from support.console_visitor import ConsoleVisitor


@pytest.fixture(scope="module", autouse=True)
def patient_pages(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let pages wait for the cluster for as long as a busy machine needs, where a visitor would rather reload."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.module.__name__.endswith("test_outages"):  # which shows how soon a page gives up
            patch.setattr(page, "TIMEOUT_S", 60.0)
            patch.setattr(visitors, "_PAGE_CALL_S", 25.0)
        yield


@pytest.fixture(scope="module")
def console(cluster: LocalCluster) -> Iterator[ConsoleVisitor]:
    with serving_console(cluster.nameserver, "127.0.0.1", 0, interval_s=0.2) as served:
        yield ConsoleVisitor(served.address)
