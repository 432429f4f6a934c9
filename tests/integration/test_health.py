"""The health of servers, as tools for gRPC ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from minimq import LocalCluster
from minimq_common.wire import rpc
from minimq_common.wire.dispatcher import Dispatcher
from minimq_common.wire.health_service import HealthService
from support.loop_thread import LoopThread

TIMEOUT_S = 30.0
SERVING, NOT_SERVING = (health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING)


class Tool:
    """Asks a server what any server can be asked."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.health: Any = health_pb2_grpc.HealthStub(channel)

    def check(self, service: str = "") -> int:
        status: int = self.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S).status
        return status


@contextmanager
def tool(address: str) -> Iterator[Tool]:
    with rpc.open_channel(address) as channel:
        yield Tool(channel)


class Bare:
    """A server that has its health and nothing else."""

    metrics_address = ""

    async def start(self) -> None:
        self.server, dispatcher = grpc.aio.server(), Dispatcher()
        self.health = HealthService(dispatcher)
        self.server.add_generic_rpc_handlers((dispatcher,))
        self.address = await rpc.bind(self.server, "127.0.0.1:0")
        await self.server.start()

    async def failure(self) -> None:
        await self.server.wait_for_termination()

    async def stop(self) -> None:
        self.health.stopping()
        await self.server.stop(TIMEOUT_S)


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


def test_health_follows_the_life_of_a_server(loop: LoopThread) -> None:
    with loop.serving(Bare()) as server, tool(server.address) as asked:
        assert (asked.check(), asked.check("minimq.v1.Some")) == (NOT_SERVING, NOT_SERVING)
        loop.call(server.health.serving)
        assert (asked.check(), asked.check("minimq.v1.Some")) == (SERVING, SERVING)
        assert asked.check("no.such.Service") == SERVING  # its request is not read
        loop.call(server.health.stopping)
        assert asked.check() == NOT_SERVING


@pytest.mark.system
def test_both_daemons_have_it() -> None:
    with LocalCluster(brokers=1) as own:
        for server, service in ((own.nameservers[0], "minimq.v1.NameServer"), (own.brokers[0], "minimq.v1.Broker")):
            with tool(server.address) as asked:
                assert (asked.check(), asked.check(service)) == (SERVING, SERVING)
