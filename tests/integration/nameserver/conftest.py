"""Name servers, brokers and route caches, over real connections."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from minimq_nameserver.options import NameServerOptions
from minimq_nameserver.server import NameServer
from support.fake_broker import FakeBroker
from support.loop_thread import LoopThread
from support.open_routes import OpenRoutes
from support.starting import OpenCache, StartBroker, StartNameServer
from support.waiting import wait_until


@pytest.fixture(scope="package")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def cleanup() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def start_nameserver(loop: LoopThread, cleanup: contextlib.ExitStack) -> StartNameServer:
    def start(
        listen: str = "127.0.0.1:0",
        grace_s: float = 0,
        expire_after_s: float = 120,
        *,
        remember_offline_s: float = 86_400,
    ) -> NameServer:
        options = NameServerOptions(
            listen=listen, start_grace_s=grace_s, expire_after_s=expire_after_s, remember_offline_s=remember_offline_s
        )
        return cleanup.enter_context(loop.serving(NameServer(options, scan_interval_s=0.02)))

    return start


@pytest.fixture
def start_broker(loop: LoopThread, cleanup: contextlib.ExitStack) -> StartBroker:
    def start(
        *nameservers: str,
        topics: tuple[str, ...] = ("orders",),
        name: str = "broker-a",
        broker_id: int = 0,
        address: str = "",
    ) -> FakeBroker:
        broker = FakeBroker(loop, *nameservers, name=name, broker_id=broker_id, address=address)
        cleanup.callback(broker.stop)
        if nameservers:
            wait_until(lambda: broker.registration.connected)
        broker.carry(*topics)
        return broker

    return start


@pytest.fixture
def open_cache(cleanup: contextlib.ExitStack) -> OpenCache:
    def open_it(*nameservers: str, timeout_s: float = 30, poll_s: float = 30) -> OpenRoutes:
        cache = OpenRoutes(nameservers, timeout_s=timeout_s, poll_s=poll_s)
        cleanup.callback(cache.close)
        return cache

    return open_it
