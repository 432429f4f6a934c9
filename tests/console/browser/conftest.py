"""One Chromium, one cluster with a shop on it, and one console of that, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minimq import LocalCluster
from minimq_cli.console import serving_console
from support.browser import CHROMIUM, DRIVER, LACKING, Browser, open_browser
from support.shop import Shop, open_shop


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    if not (CHROMIUM and DRIVER):
        pytest.skip(LACKING)
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="package")
def shop_cluster(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two brokers with a slave each; a slave follows soon when its master is killed."""
    options = {"term_lease_s": 1.5}
    folder = tmp_path_factory.mktemp("shop")
    with LocalCluster(brokers=2, slaves=1, data_dir=folder, nameserver_options=options) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def shop(shop_cluster: LocalCluster) -> Iterator[Shop]:
    with open_shop(shop_cluster.nameserver) as opened:
        yield opened


@pytest.fixture(scope="package")
def console_address(shop_cluster: LocalCluster, shop: Shop) -> Iterator[str]:
    with serving_console(shop_cluster.nameserver, "127.0.0.1", 0, interval_s=0.2, allow_changes=True) as served:
        yield served.address


@pytest.fixture
def browser(chromium: Browser, console_address: str) -> Iterator[Browser]:
    """The browser on the first page; its log has nothing in the end."""
    chromium.reset()
    chromium.complaints()
    chromium.open(console_address)
    yield chromium
    assert chromium.complaints() == []
