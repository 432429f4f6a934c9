"""The console in a browser, under a path prefix of a real nginx."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minimq import LocalCluster, Message, Producer
from minimq_cli.console import serving_console
from support.browser import Browser
from support.nginx import LACKING, NGINX, nginx
from support.shop import Shop

pytestmark = [pytest.mark.system, pytest.mark.skipif(NGINX is None, reason=LACKING)]


def test_pages_are_live_searched_and_used_under_a_prefix(
    chromium: Browser, shop_cluster: LocalCluster, shop: Shop, tmp_path: Path
) -> None:
    nameserver = shop_cluster.nameserver
    options: dict[str, Any] = {"allow_changes": True, "trusted_proxies": ("127.0.0.1",)}
    with serving_console(nameserver, "127.0.0.1", 0, interval_s=0.2, **options) as served:
        prefix = "proxy_set_header X-Forwarded-Prefix /console;"
        with nginx(tmp_path, {"/console/": f"proxy_pass {served.address}/; {prefix}"}) as address:
            chromium.reset()
            chromium.complaints()
            chromium.open(f"{address}/console/")
            chromium.follow("Topics")
            chromium.fill("Name contains", "order")  # the server searches while one types
            chromium.wait_until_true("return location.search.includes('order')")
            chromium.follow("orders")
            with Producer(nameserver) as producer:
                producer.send(Message("orders", b"through the proxy"))
            chromium.wait_for("through the proxy")
            chromium.follow("Resize")
            chromium.push("Show what will happen")
            chromium.wait_for("What will happen")
            assert chromium.address.startswith(f"{address}/console/topics/orders/")
            assert chromium.complaints() == []
